# SPDX-License-Identifier: Apache-2.0
"""Runs a generated program and its packets on the model, on BMv2 and in the Python evaluator, and shrinks what differs.

export PYTHONPATH=tests/fuzz:tests/switch
python -m fuzz_run --seeds 1..200                # model against the evaluator, and against BMv2 if it is on PATH
python -m fuzz_run --seeds 7 --show              # the program of a seed
python -m fuzz_run --seeds 7 --minimise          # a smaller program that still differs
"""

import argparse
import copy
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bmv2
from fuzz_expressions import Const, Expression
from fuzz_generate import Generator
from fuzz_program import GeneratedProgram
from fuzz_statements import Block, Table

from inagg_switch import CompileError, Switch, ToolchainError
from inagg_switch.compiler.preprocess import preprocess_text

Output = list[tuple[int, bytes]]


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


def run_model(program: GeneratedProgram, frames: list[bytes]) -> list[Output]:
    """Raises CompileError or ToolchainError."""
    with Switch.from_source(preprocess_text(program.p4(), "fuzz.p4").text, name="fuzz.p4") as switch:
        for table in runtime_tables(program):
            set_up_model(switch, table)
        return [switch.process(2, frame) for frame in frames]


def runtime_tables(program: GeneratedProgram) -> list[Table]:
    return [t for t in program.used()[2] if not t.const and t.entries]


def by_priority(table: Table) -> bool:
    return any(kind in ("ternary", "range", "optional") for _, kind in table.keys)


def set_up_model(switch: Switch, table: Table) -> None:
    for place, entry in enumerate(table.entries):
        match = {
            table.key_name(i): key
            for i, (key, (_, kind)) in enumerate(zip(entry.keys, table.keys, strict=True))
            if key is not None and not dont_care(key, kind)
        }
        names = [p.name for p in entry.action.parameters]
        switch.insert(
            f"I.{table.name}", match, f"I.{entry.action.name}", dict(zip(names, entry.arguments, strict=True)),
            1000 - place if by_priority(table) else 0,
        )  # fmt: skip


def dont_care(key: int | tuple[int, int], kind: str) -> bool:
    return isinstance(key, tuple) and key[1] == 0 and kind in ("lpm", "ternary")


def bmv2_commands(table: Table) -> Iterator[str]:
    for place, entry in enumerate(table.entries):
        words = []
        for key, (expression, kind) in zip(entry.keys, table.keys, strict=True):
            ones = (1 << expression.type.width) - 1
            if key is None:
                words.append("0&&&0")
            elif isinstance(key, int):
                words.append(f"{key:#x}&&&{ones:#x}" if kind == "optional" else hex(key))
            else:
                separator = {"lpm": "/", "ternary": "&&&", "range": "->"}[kind]
                second = str(key[1]) if kind == "lpm" else hex(key[1])
                words.append(f"{key[0]:#x}{separator}{second}")
        arguments = [hex(a) for a in entry.arguments]
        priority = [str(1 + place)] if by_priority(table) else []
        yield " ".join(
            ["table_add", f"I.{table.name}", f"I.{entry.action.name}", *words, "=>", *arguments, *priority]
        )


def run_bmv2(program: GeneratedProgram, frames: list[bytes], expected: list[Output]) -> list[Output]:
    """Raises bmv2.Bmv2Error."""
    with tempfile.TemporaryDirectory(prefix="inagg-fuzz-") as folder:
        path = Path(folder) / "fuzz.p4"
        path.write_text(program.p4())
        with bmv2.Bmv2(bmv2.compile_p4(path, Path(folder))) as switch:
            switch.command(*(c for t in runtime_tables(program) for c in bmv2_commands(t)))
            return [switch.process(2, f, max(1, len(e))) for f, e in zip(frames, expected, strict=True)]


def compare(program: GeneratedProgram, frames: list[bytes], on_bmv2: bool) -> Difference | None:
    """The first difference between the model, the evaluator and BMv2."""
    wanted = [program.evaluate(frame) for frame in frames]
    try:
        seen = run_model(program, frames)
    except CompileError as error:
        return Difference(f"the model refuses it: {error}")
    except ToolchainError as error:
        return Difference(f"the generated C++ does not compile: {error}")
    real = run_bmv2(program, frames, seen) if on_bmv2 else None
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

    visit([program.body, program.actions, program.functions, program.tables, program.parser])
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
            print(f"seed {seed}: no verdict: {str(error)[:500]}", flush=True)
            continue
        if difference is None:
            print(f"seed {seed}: same", flush=True)
            continue
        wrong += 1
        print(f"seed {seed}: {difference}", flush=True)
        if arguments.minimise:
            only = [difference.frame] if difference.frame is not None else frames

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
