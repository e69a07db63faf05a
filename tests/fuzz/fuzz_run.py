# SPDX-License-Identifier: Apache-2.0
"""Runs a generated program and its packets on the model, on BMv2 and in the Python evaluator, and shrinks what differs.

export PYTHONPATH=tests/fuzz:tests/switch
python -m fuzz_run --seeds 1..200                # model against the evaluator, and against BMv2 if it is on PATH
python -m fuzz_run --seeds 7 --show              # the program of a seed
python -m fuzz_run --seeds 7 --minimise          # a smaller program that still differs
"""

import argparse
import copy
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bmv2
from bmv2_vectors import run_config
from fuzz_expressions import Const, Expression
from fuzz_generate import Generator
from fuzz_program import GeneratedProgram
from fuzz_statements import Block
from p4.config.v1.p4info_pb2 import P4Info

from inagg_switch import CompileError, Switch, SwitchError, ToolchainError
from inagg_switch.compiler.preprocess import preprocess_text
from inagg_switch.vectors import Output, Packet
from inagg_switch.vectors_run import set_up

_PORT = 2


@dataclass
class Difference:
    """`frame` is None where a program was refused."""

    what: str
    frame: bytes | None = None
    outputs: tuple[Output, Output] | None = None

    def __str__(self) -> str:
        if self.frame is None or self.outputs is None:
            return self.what
        first, second = ([(p, f.hex()) for p, f in o] for o in self.outputs)
        return f"{self.what}: packet {self.frame.hex()}\n  {first}\n  {second}"


def run_model(program: GeneratedProgram, frames: list[bytes]) -> tuple[list[Output], P4Info]:
    """What leaves, and the program's P4Info. Raises CompileError, ToolchainError or another SwitchError."""
    with Switch.from_source(preprocess_text(program.p4(), "fuzz.p4").text, name="fuzz.p4") as switch:
        set_up(switch, program.vectors())
        return [switch.process(_PORT, frame) for frame in frames], switch.layout


def run_bmv2(
    program: GeneratedProgram, info: P4Info, frames: list[bytes], expected: list[Output]
) -> list[Output]:
    """Raises bmv2.Bmv2Error."""
    vectors = program.vectors()
    vectors.packets = [Packet(_PORT, f, e) for f, e in zip(frames, expected, strict=True)]
    with tempfile.TemporaryDirectory(prefix="inagg-fuzz-") as folder:
        path = Path(folder) / "fuzz.p4"
        path.write_text(program.p4())
        config = bmv2.compile_p4(path, Path(folder))
        # p4c leaves out what it finds is never reached.
        made = json.loads(config.read_text())
        pipelines, sets = made["pipelines"], {known["name"] for known in made["parse_vsets"]}
        tables = {table["name"] for pipeline in pipelines for table in pipeline["tables"]}
        profiles = {profile["name"] for pipeline in pipelines for profile in pipeline["action_profiles"]}
        vectors.inserts = [e for e in vectors.inserts if e.table in tables]
        vectors.members = [m for m in vectors.members if m.profile in profiles]
        vectors.member_groups = [g for g in vectors.member_groups if g.profile in profiles]
        vectors.value_sets = [v for v in vectors.value_sets if v.name in sets]
        return run_config(config, info, vectors)


def compare(program: GeneratedProgram, frames: list[bytes], on_bmv2: bool) -> Difference | None:
    """The first difference between the model, the evaluator and BMv2."""
    registers: dict[Any, int] = {}
    wanted = [program.evaluate(frame, registers) for frame in frames]
    try:
        seen, info = run_model(program, frames)
    except CompileError as error:
        return Difference(f"the model refuses it: {error}")
    except ToolchainError as error:
        return Difference(f"the generated C++ does not compile: {error}")
    except SwitchError as error:
        return Difference(f"the model refuses an entry: {error}")
    real = run_bmv2(program, info, frames, seen) if on_bmv2 else None
    for place, frame in enumerate(frames):
        if real is not None and seen[place] != real[place]:
            said = " (as the evaluator says)" if wanted[place] == seen[place] else ""
            return Difference(f"model{said} and BMv2 differ", frame, (seen[place], real[place]))
        if seen[place] != wanted[place]:
            said = ", BMv2 agrees with the model" if real is not None else ""
            return Difference(f"model and evaluator differ{said}", frame, (seen[place], wanted[place]))
    return None


# --- making it smaller


def _reductions(program: GeneratedProgram) -> Iterator[Callable[[GeneratedProgram], None]]:
    """Edits, large ones first. Each is applied to a copy of the program, in which nodes have the same places."""
    for place, node in enumerate(_nodes(program)):
        if isinstance(node, Block):
            for at in range(len(node.statements)):
                yield lambda p, place=place, at=at: _nodes(p)[place].statements.pop(at)  # type: ignore[misc]
    for place, node in enumerate(_nodes(program)):
        for name, child in list(vars(node).items()) if not isinstance(node, list) else []:
            if isinstance(child, Expression) and name not in ("target", "operand"):
                for smaller in (*child.children(), _zero(child)):
                    if smaller.type == child.type and type(smaller) is not type(child):
                        yield lambda p, place=place, name=name, smaller=smaller: setattr(  # type: ignore[misc]
                            _nodes(p)[place], name, copy.deepcopy(smaller)
                        )


def _zero(e: Expression) -> Const:
    return Const(e.type, 0)


def _nodes(program: GeneratedProgram) -> list[Any]:
    """Every node once, in a fixed order."""
    found: list[Any] = []
    seen: set[int] = set()

    def visit(node: object) -> None:
        if isinstance(node, list | tuple):
            for one in node:
                visit(one)
        elif hasattr(node, "__dict__") and type(node).__module__.startswith("fuzz_") and id(node) not in seen:
            seen.add(id(node))
            found.append(node)
            for one in vars(node).values():
                visit(one)

    visit([program.body, program.verify, program.update])
    visit([program.actions, program.functions, program.tables, program.parser])
    return found


def minimise(
    program: GeneratedProgram, differs: Callable[[GeneratedProgram], bool], tries: int = 150
) -> GeneratedProgram:
    """Applies reductions as long as the difference stays. Every try compiles a program."""
    again = True
    while again and tries > 0:
        again = False
        for reduction in list(_reductions(program)):
            smaller = copy.deepcopy(program)
            try:
                reduction(smaller)
                if smaller.p4() == program.p4():
                    continue
            except (AttributeError, IndexError):
                continue
            tries -= 1
            if differs(smaller):
                program, again = smaller, True
                break
            if tries <= 0:
                break
    return program


def _frames_that_differ(
    program: GeneratedProgram, frames: list[bytes], difference: Difference, on_bmv2: bool
) -> list[bytes]:
    """One if it can be; registers may need those before it."""
    if difference.frame is None:
        return frames[:1]
    alone = [difference.frame]
    if compare(program, alone, on_bmv2) is not None:
        return alone
    return frames[: frames.index(difference.frame) + 1]


def check_seed(
    seed: int, packets: int, on_bmv2: bool
) -> tuple[GeneratedProgram, list[bytes], Difference | None]:
    """Generates, runs and compares."""
    generator = Generator(seed)
    program = generator.program()
    frames = generator.packets(program, packets)
    return program, frames, compare(program, frames, on_bmv2)


def seeds_of(text: str) -> range:
    first, _, last = text.partition("..")
    return range(int(first), int(last or first) + 1)


def main() -> int:
    """The command line; returns how many seeds differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=seeds_of, default=range(1, 21), help="N or FIRST..LAST")
    parser.add_argument("--packets", type=int, default=100, help="for each program")
    parser.add_argument("--no-bmv2", action="store_true", help="the evaluator only, even if BMv2 is on PATH")
    parser.add_argument("--show", action="store_true", help="print the programs and run nothing")
    parser.add_argument("--minimise", action="store_true", help="shrink what differs (many compilations)")
    arguments = parser.parse_args()
    on_bmv2 = bmv2.available() and not arguments.no_bmv2
    wrong = 0
    for seed in arguments.seeds:
        if arguments.show:
            print(Generator(seed).program().p4())
            continue
        try:
            program, frames, difference = check_seed(seed, arguments.packets, on_bmv2)
        except bmv2.Bmv2Error as error:
            print(f"seed {seed}: no verdict: {str(error)[-500:]}", flush=True)
            continue
        if difference is None:
            print(f"seed {seed}: same", flush=True)
            continue
        wrong += 1
        print(f"seed {seed}: {difference}", flush=True)
        if arguments.minimise:
            only = _frames_that_differ(program, frames, difference, on_bmv2)

            def differs(p: GeneratedProgram, only: list[bytes] = only) -> bool:
                try:
                    return compare(p, only, on_bmv2) is not None
                except bmv2.Bmv2Error:
                    return False

            small = minimise(program, differs)
            print(small.p4(), compare(small, only, on_bmv2), sep="\n", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(min(main(), 100))
