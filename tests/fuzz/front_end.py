# SPDX-License-Identifier: Apache-2.0
"""Mutated and truncated programs for the compiler's front end: each must compile or raise a CompileError within 20 s.

python -m tests.fuzz.front_end --seeds 1..100000
python -m tests.fuzz.front_end --seeds 1..2000 --p4c       # also: does p4c accept what the compiler accepts?
"""

import argparse
import random
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from inagg_switch import CompileError
from inagg_switch.compiler import generate
from inagg_switch.compiler.parse.preprocess import preprocess_text
from tests.fuzz.seeds import seeds_of
from tests.switch import PROGRAMS

SOON_S = 20.0  # a compilation that takes longer is a fault
_TOKEN = re.compile(
    r'[A-Za-z_]\w*|\d\w*|"[^"\n]*"|&&&|\|\+\||\|-\||\.\.|\+\+|<<|&&|\|\||[<>=!]=|\n|[ \t]+|.', re.DOTALL
)
_WORDS = """
    header struct header_union enum error typedef type const table action parser control state transition select apply
    key actions entries default_action size in out inout bit int varbit bool tuple true false if else switch exit
    return for default verify extract emit lookahead advance hit miss action_run valid next last lastIndex
    setValid setInvalid isValid push_front pop_front exact lpm ternary range optional register counter meter
    { } ( ) [ ] < > ; : , . = == != + - * / % & | ^ ~ ! ? << >> && || |+| |-| ++ &&& .. _ @name("x") @ # \\ " ' /* */ //
    0 1 8w255 4s7 8w256 0x 1w2 4w 99999999999999999999 bit<0> bit<8> int<1> bit<99999999> 0b2 \x00 \x7f é this list
    packet_in packet_out main V1Switch #define #include #if #endif
""".split()  # noqa: SIM905 - a list of words reads better


@cache
def corpus() -> list[tuple[str, list[str]]]:
    """The programs to mutate: (name, tokens)."""
    paths = [*sorted(PROGRAMS.glob("*.p4")), PROGRAMS.with_name("p4runtime") / "small.p4"]
    return [(p.name, _TOKEN.findall(p.read_text())) for p in paths]


def mutant(seed: int) -> tuple[str, str]:
    """Returns the name of a program and its damaged text; the same for the same seed."""
    generator = random.Random(seed)
    name, original = generator.choice(corpus())
    tokens = list(original)
    solid = [i for i, t in enumerate(tokens) if not t.isspace()]
    for _ in range(generator.choice((1, 1, 1, 2, 3, 8))):
        at = min(generator.choice(solid), len(tokens) - 1)
        made = generator.randrange(8)
        if made == 0:
            del tokens[at]
        elif made == 1:
            tokens.insert(at, tokens[at])
        elif made == 2:
            other = min(generator.choice(solid), len(tokens) - 1)
            tokens[at], tokens[other] = tokens[other], tokens[at]
        elif made == 3:
            tokens[at] = generator.choice(_WORDS)
        elif made == 4:
            tokens.insert(at, f" {generator.choice(_WORDS)} ")
        elif made == 5:  # a word of the same program
            tokens[at] = tokens[min(generator.choice(solid), len(tokens) - 1)]
        elif made == 6:
            del tokens[at : at + generator.randrange(30)]
        else:  # a piece goes elsewhere
            piece = tokens[at : at + generator.randrange(20)]
            other = generator.choice(solid)
            tokens[other:other] = piece
        if not tokens:
            break
    text = "".join(tokens)
    if generator.random() < 0.15:
        text = text[: generator.randrange(len(text) + 1)]
    return name, text


@dataclass(frozen=True)
class Result:
    """`error`: the diagnostic. `wrong`: what the compiler did that it must not do."""

    accepted: bool = False
    error: str = ""
    wrong: str = ""


def compile_mutant(name: str, text: str) -> Result:
    """Runs all stages before the C++ compiler."""
    return _result(lambda: generate(preprocess_text(text, name).text, name))


def compile_preprocessed(name: str, text: str) -> Result:
    """Runs all stages from the lexer to the C++ compiler."""
    return _result(lambda: generate(text, name))


def _result(compile_program: Callable[[], object]) -> Result:
    started = time.monotonic()
    try:
        compile_program()
    except CompileError as error:
        place = error.position
        if not error.message or place.line < 1 or place.column < 1:
            return Result(wrong=f"a diagnostic without a place: {error}")
        result = Result(error=str(error))
    except Exception:
        return Result(wrong=traceback.format_exc(limit=-3))
    else:
        result = Result(accepted=True)
    took = time.monotonic() - started
    return Result(wrong=f"took {took:.0f} s") if took > SOON_S else result


def refused_by_p4c(text: str) -> str:
    """p4c's first error, or "" if it accepts the program."""
    with tempfile.TemporaryDirectory(prefix="inagg-fuzz-") as folder:
        path = Path(folder) / "mutant.p4"
        path.write_text(text)
        done = subprocess.run(
            ["p4c-bm2-ss", "-o", f"{folder}/out.json", str(path)], capture_output=True, text=True, check=False
        )
    lines = [line for line in done.stderr.splitlines() if "error" in line]
    return lines[0] if done.returncode != 0 and lines else ""


def main() -> int:
    """The command line; returns for how many programs the compiler failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=seeds_of, default=range(1, 1001), help="N or FIRST..LAST")
    parser.add_argument("--show", action="store_true", help="print the programs")
    parser.add_argument("--p4c", action="store_true", help="ask p4c about what is accepted")
    arguments = parser.parse_args()
    wrong = accepted = 0
    for seed in arguments.seeds:
        name, text = mutant(seed)
        if arguments.show:
            print(text)
        result = compile_mutant(name, text)
        accepted += result.accepted
        if result.wrong:
            wrong += 1
            print(f"seed {seed} ({name}): {result.wrong}", flush=True)
        elif result.accepted and arguments.p4c and (refusal := refused_by_p4c(text)):
            print(f"seed {seed} ({name}): accepted; p4c: {refusal}", flush=True)
    print(f"{wrong} wrong; {accepted} accepted")
    return wrong


if __name__ == "__main__":
    sys.exit(min(main(), 100))
