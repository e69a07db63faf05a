# SPDX-License-Identifier: Apache-2.0
"""python -m tests.attack [--amount small] [ATTACK ...]: attack, print a table, exit with 1 if a promise was broken."""

import argparse
import importlib
import logging
import pkgutil
import sys
import time
from pathlib import Path

from rich.console import Console

from inagg_testbed.network.lifecycle import signals_raise
from tests.attack import attacks
from tests.attack.outcome import Outcome, save, show

NAMES = [module.name for module in pkgutil.iter_modules(attacks.__path__)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help=", ".join(NAMES))
    parser.add_argument("--amount", choices=("small", "full"), default="full")
    parser.add_argument("--results", type=Path, default=Path("results/attack"))
    arguments = parser.parse_args()
    wanted = arguments.attacks or NAMES
    if unknown := sorted(set(wanted) - set(NAMES)):
        parser.error(f"no attack {', '.join(unknown)}; there are {', '.join(NAMES)}")
    logging.basicConfig(level=logging.ERROR)
    console, found = Console(), []
    folder = arguments.results / time.strftime("%Y%m%d-%H%M%S")
    with signals_raise():
        for name in wanted:
            outcomes: list[Outcome] = []
            attack = importlib.import_module(f"{attacks.__name__}.{name}")
            for outcome in attack.run(folder / "logs", arguments.amount == "full"):
                console.print(
                    f"{time.strftime('%H:%M:%S')} {outcome.attack}: {outcome.verdict}", markup=False
                )
                outcomes.append(outcome)
                save(outcomes, folder, name)
            found += outcomes
    wide = Console(width=240) if not console.is_terminal else console
    show(found, wide)
    print(f"JSON and logs: {folder}")
    return int(any(outcome.broken for outcome in found))


if __name__ == "__main__":
    sys.exit(main())
