# SPDX-License-Identifier: Apache-2.0
"""One rank of `inagg compare`: trains a model of ours, or runs a program of the user's, under an architecture."""

import argparse
import json
import runpy
import sys
from pathlib import Path

import torch.distributed as dist

from inagg_testbed.compare.mesh import Mesh
from inagg_testbed.compare.probe import Probe
from inagg_testbed.compare.ways import Way
from inagg_testbed.events import EventLog


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--with", dest="way", required=True)
    parser.add_argument("--racks", type=json.loads, required=True)
    parser.add_argument("--events", type=Path, required=True)
    parser.add_argument("--model")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", type=float)
    parser.add_argument("--judge-every", type=int)
    parser.add_argument("--mesh", type=Mesh.parse)
    parser.add_argument("program", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    way, log = Way.parse(arguments.way), EventLog(arguments.events)
    probe = Probe(log, way, arguments.racks)
    probe.install()
    if arguments.model is not None:
        from inagg_testbed.compare import hybrid, models  # with scikit-learn, which programs may do without

        if arguments.mesh is not None:
            hybrid.train(arguments, probe, log)
        else:
            models.train(arguments, probe, log, lockstep=way.in_lockstep)
        probe.end()
        dist.destroy_process_group()
        return
    script, *rest = arguments.program[arguments.program[0] == "--" :]
    sys.argv = [script, *rest]
    sys.path[0] = str(Path(script).resolve().parent)
    probe.finish_with_groups()
    # A program that fails must not wait for other ranks, as the last exchange of weights does.
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
    probe.end()


if __name__ == "__main__":
    main()
