# SPDX-License-Identifier: Apache-2.0
"""Installs training libraries, and trains with each over gloo, taken over by inagg, and over inagg by name.

Two ranks on this machine, over servers: no root. The weights must be gloo's. A library that cannot be installed or
imported here is a skip, with the reason. Writes results/trainers/report.md; exit status 1 if weights differ.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import torch

from inagg_contract.installation import pip_install
from tests import ROOT
from tests.controller.launching import CommandLine, Launcher, read_line
from tests.trainers.catalog import TRAINERS, Trainer
from tests.trainers.installation import PYTHON, NotInstalledError, create, environment, install

RANKS = 2
PROGRAMS = Path(__file__).with_name("programs")
RESULTS = ROOT / "results" / "trainers"
PATIENCE_S = 900  # DeepSpeed compiles an extension at its first start
CONTROLLER = "127.0.0.1:9670"
STORE = 29670  # port of torch's store

# Way -> the environment that makes it.
WAYS = {
    "gloo": {},
    "taken over": {"INAGG_TAKE_OVER": "gloo"},
    "by name": {"TRAINER_BACKEND": "inagg"},
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.trainers", description=__doc__)
    parser.add_argument("names", nargs="*", help="trainers; by default all", metavar="NAME")
    parser.add_argument("--again", action="store_true", help="remove the environment first")
    given = parser.parse_args()
    known = {trainer.name: trainer for trainer in TRAINERS}
    if unknown := [name for name in given.names if name not in known]:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}")
    create(given.again)
    shutil.rmtree(RESULTS, ignore_errors=True)
    RESULTS.mkdir(parents=True)
    chosen = [known[name] for name in given.names] or TRAINERS
    options = {"no-switch": True, "listen": CONTROLLER, "token-file": RESULTS / "token"}
    rows = [
        "| library | version | " + " | ".join(way for way in WAYS if way != "gloo") + " |",
        "|---|---|---|---|",
    ]
    failed = False
    with closing(Launcher(CommandLine(options))) as launch:
        if read_line(launch()) != "ready":
            sys.exit("the controller has not started")
        for trainer in chosen:
            outcomes = outcome(trainer)
            failed |= any(text.startswith("FAILED") for text in outcomes)
            rows.append(f"| {trainer.library} | {versions(trainer)} | {' | '.join(outcomes)} |")
            print(rows[-1], flush=True)
    (RESULTS / "report.md").write_text("\n".join(rows) + "\n")
    print(f"report: {RESULTS / 'report.md'}")
    sys.exit(failed)


def outcome(trainer: Trainer) -> tuple[str, str]:
    """What came of the take-over, and of the name in the program."""
    if trainer.requirements:
        try:
            install(trainer)
        except NotInstalledError as error:
            return (f"skipped: not installed: {error}",) * 2
    gloo, problem = train(trainer, "gloo")
    if problem:
        return (f"skipped: it does not run over gloo here: {problem}",) * 2
    return (
        compared(trainer, "taken over", gloo),
        compared(trainer, "by name", gloo) if trainer.named else "the library knows fixed names",
    )


def compared(trainer: Trainer, way: str, expected: list[dict[str, torch.Tensor]]) -> str:
    """The largest difference to gloo's weights in all ranks, or what failed."""
    weights, problem = train(trainer, way)
    if problem:
        return f"FAILED: {problem}"
    largest = 0.0
    for ours, gloos in zip(weights, expected, strict=True):
        if ours.keys() != gloos.keys():
            return f"FAILED: other weights: {sorted(ours.keys() ^ gloos.keys())}"
        for name, tensor in gloos.items():
            largest = max(largest, (ours[name].double() - tensor.double()).abs().max().item())
    return (
        f"gloo's weights, to {largest:.0e}"
        if largest <= trainer.error
        else f"FAILED: weights differ by {largest:.1e}"
    )


def train(trainer: Trainer, way: str) -> tuple[list[dict[str, torch.Tensor]], str]:
    """The weights of each rank, and what has failed."""
    out = RESULTS / f"{trainer.name} {way}".replace(" ", "-")
    out.mkdir()
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(RANKS), "--master-port", str(STORE)]
    command = [str(PYTHON), *(torchrun if trainer.launched else []), str(PROGRAMS / trainer.program)]
    own = {"INAGG_CONTROLLER": f"http://{CONTROLLER}", "INAGG_AGGREGATION": "server", "TRAINER_OUT": str(out)}
    log = out.with_suffix(".log")
    with log.open("w") as stream:
        process = subprocess.Popen(
            [*command, *trainer.arguments],
            env=environment() | own | WAYS[way],
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return [], f"no end after {PATIENCE_S} s; {log}"
    text = log.read_text(errors="replace")
    if status != 0:
        return [], f"{last_error(text)}; {log}"
    if way == "taken over" and "inagg: took over this program's groups" not in text:
        return [], f"it was not taken over; {log}"
    return [torch.load(out / f"{rank}.pt") for rank in range(RANKS)], ""


def last_error(text: str) -> str:
    """The first exception of a rank in a log."""
    lines = [line.partition("]: ")[2] if line.startswith("[rank") else line for line in text.splitlines()]
    errors = [
        line
        for line in lines
        if "Error: " in line and not line.startswith((" ", "torch.distributed.elastic"))
    ]
    return errors[0][:300].replace("|", "/") if errors else "it failed without a Python exception"


def versions(trainer: Trainer) -> str:
    """The library's version, or torch's if the project's environment has the library."""
    if trainer.requirements:
        return trainer.requirements[0].partition("==")[2] or "newest"
    script = "from importlib.metadata import version as v; print(v({!r}))"
    package = {"lightning": "lightning", "fabric": "lightning", "trainer": "transformers"}.get(
        trainer.name, "torch"
    )
    done = subprocess.run(
        [str(PYTHON), "-c", script.format(package)], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or f"{package} is missing: {pip_install('frameworks')}"


if __name__ == "__main__":
    main()
