# SPDX-License-Identifier: Apache-2.0
"""Runs generated programs and packets on the model, on BMv2 and in the Python evaluator; shrinks programs that differ.

python -m tests.fuzz.run --seeds 1..200                # model against the evaluator, and against BMv2 if it is on PATH
python -m tests.fuzz.run --seeds 7 --show              # the program of a seed
python -m tests.fuzz.run --seeds 7 --minimise          # a smaller program that still differs
"""

import argparse
import copy
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from p4.config.v1.p4info_pb2 import P4Info

from inagg_switch import CompileError, Switch, SwitchError, ToolchainError
from inagg_switch.compiler.parse.preprocess import preprocess_text
from inagg_switch.vectors.format import Digest, Output, Packet, Vectors
from inagg_switch.vectors.run import set_up, wrong_state
from tests.fuzz.generate.generator import Generator
from tests.fuzz.programs.evaluate import expected
from tests.fuzz.programs.expressions import Const, Expression, Type
from tests.fuzz.programs.program import GeneratedProgram
from tests.fuzz.programs.statements import Block
from tests.fuzz.seeds import seeds_of
from tests.switch import bmv2
from tests.switch.bmv2_vectors import StateError, run_config


@dataclass
class Difference:
    """A difference between two machines. `frame` is None if a program was refused."""

    what: str
    frame: bytes | None = None
    outputs: tuple[Output, Output] | None = None

    def __str__(self) -> str:
        if self.frame is None or self.outputs is None:
            return self.what
        first, second = ([(p, f.hex()) for p, f in o] for o in self.outputs)
        return f"{self.what}: packet {self.frame.hex()}\n  {first}\n  {second}"


def run_model(program: GeneratedProgram, wanted: Vectors) -> tuple[Vectors, list[str], P4Info]:
    """Returns the vectors with the model's outputs, the differences of its counters and registers from `wanted`, and
    the program's P4Info. Raises CompileError, ToolchainError or another SwitchError."""
    with Switch.from_source(preprocess_text(program.p4(), "fuzz.p4").text, name="fuzz.p4") as switch:
        set_up(switch, wanted)
        seen = []
        for packet in wanted.packets:
            out = switch.process(packet.port, packet.frame)
            digests = [Digest(d.name, dict(d.fields)) for d in switch.digests()]
            seen.append(Packet(packet.port, packet.frame, out, digests))
        return replace(wanted, packets=seen), list(wrong_state(switch, wanted)), switch.layout


def run_bmv2(program: GeneratedProgram, info: P4Info, vectors: Vectors) -> list[Output]:
    """BMv2's output for each packet. Raises bmv2.Bmv2Error or StateError."""
    with tempfile.TemporaryDirectory(prefix="inagg-fuzz-") as folder:
        path = Path(folder) / "fuzz.p4"
        path.write_text(program.p4())
        config = bmv2.compile_p4(path, Path(folder))
        return run_config(config, info, _that_bmv2_has(vectors, json.loads(config.read_text())))


def _that_bmv2_has(vectors: Vectors, config: dict[str, Any]) -> Vectors:
    """The vectors without the objects that p4c removed as unreachable, and with equal digests once, as BMv2 sends
    them."""
    pipelines, sets = config["pipelines"], {known["name"] for known in config["parse_vsets"]}
    tables = {table["name"] for pipeline in pipelines for table in pipeline["tables"]}
    # BMv2 knows a profile's actions from its tables: a profile without a table has none.
    profiles = {table.get("action_profile") for pipeline in pipelines for table in pipeline["tables"]}
    counters = {counter["name"] for counter in config["counter_arrays"]}
    meters = {meter["name"] for meter in config["meter_arrays"]}
    sent: list[Digest] = []
    packets = []
    for packet in vectors.packets:
        new = [d for place, d in enumerate(packet.digests) if d not in sent + packet.digests[:place]]
        packets.append(replace(packet, digests=new))
        sent += new
    return replace(
        vectors,
        packets=packets,
        inserts=[e for e in vectors.inserts if e.table in tables],
        members=[m for m in vectors.members if m.profile in profiles],
        member_groups=[g for g in vectors.member_groups if g.profile in profiles],
        value_sets=[v for v in vectors.value_sets if v.name in sets],
        counters=[c for c in vectors.counters if c.name in counters],
        direct_counters=[c for c in vectors.direct_counters if c.name in tables],
        meters=[m for m in vectors.meters if m.name in meters],
    )


def compare(program: GeneratedProgram, frames: list[bytes], on_bmv2: bool) -> Difference | None:
    """The first difference between the model, the evaluator and BMv2. Frames of one packet may leave in any order."""
    wanted = expected(program, frames)
    try:
        seen, state, info = run_model(program, wanted)
    except CompileError as error:
        return Difference(f"the model refuses it: {error}")
    except ToolchainError as error:
        return Difference(f"the generated C++ does not compile: {error}")
    except SwitchError as error:
        return Difference(f"the model refuses an entry: {error}")
    real = None
    try:
        real = run_bmv2(program, info, seen) if on_bmv2 else None
    except StateError as error:
        real = error.out
        state.insert(0, f"model and BMv2 differ: {error}")
    for place, (mine, evaluated) in enumerate(zip(seen.packets, wanted.packets, strict=True)):
        same = sorted(mine.expected) == sorted(evaluated.expected)
        if real is not None and sorted(mine.expected) != sorted(real[place]):
            said = " (as the evaluator says)" if same else ""
            return Difference(f"model{said} and BMv2 differ", mine.frame, (mine.expected, real[place]))
        said = ", BMv2 agrees with the model" if real is not None else ""
        if not same:
            outputs = mine.expected, evaluated.expected
            return Difference(f"model and evaluator differ{said}", mine.frame, outputs)
        if mine.digests != evaluated.digests:
            what = f"digests {mine.digests}, in the evaluator {evaluated.digests}"
            return Difference(f"{what}{said}", mine.frame, ([], []))
    return Difference("; ".join(state), frames[-1], ([], [])) if state else None


# --- making it smaller


def _reductions(program: GeneratedProgram) -> Iterator[Callable[[GeneratedProgram], None]]:
    """Edits that make the program smaller, large ones first. Apply each to a copy of the program: nodes have the same
    places in it."""
    for place, node in enumerate(_nodes(program)):
        if isinstance(node, Block):
            for at in range(len(node.statements)):
                yield lambda p, place=place, at=at: _nodes(p)[place].statements.pop(at)  # type: ignore[misc]
    for place, node in enumerate(_nodes(program)):
        for name, child in list(vars(node).items()) if not isinstance(node, list) else []:
            if isinstance(child, Expression) and name not in ("target", "operand"):
                zeros = [_zero(child)] if type(child.type) is Type else []
                for smaller in (*child.children(), *zeros):
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
        elif type(node).__module__.startswith("tests.fuzz.programs.") and id(node) not in seen:
            seen.add(id(node))
            found.append(node)
            for one in vars(node).values():
                visit(one)

    visit([program.body, program.egress, program.tail, program.verify, program.update])
    visit([program.actions, program.functions, program.controls, program.tables, program.parser])
    return found


def minimise(
    program: GeneratedProgram, differs: Callable[[GeneratedProgram], bool], tries: int = 150
) -> GeneratedProgram:
    """Applies reductions as long as the difference remains. Each try compiles a program."""
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
    """The frame that differs if it is enough, or all frames up to it, because registers may depend on them."""
    if difference.frame is None:
        return frames[:1]
    alone = [difference.frame]
    if compare(program, alone, on_bmv2) is not None:
        return alone
    return frames[: frames.index(difference.frame) + 1]


def check_seed(
    seed: int, packets: int, on_bmv2: bool
) -> tuple[GeneratedProgram, list[bytes], Difference | None]:
    """Generates a program and packets, runs and compares them."""
    generator = Generator(seed)
    program = generator.program()
    frames = generator.packets(program, packets)
    return program, frames, compare(program, frames, on_bmv2)


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

            def differs(p: GeneratedProgram, only: list[bytes] = only, what: str = difference.what) -> bool:
                """Whether it differs in the same way: a smaller program may be invalid."""
                try:
                    found = compare(p, only, on_bmv2)
                except bmv2.Bmv2Error:
                    return False
                return found is not None and found.what == what

            small = minimise(program, differs)
            print(small.p4(), compare(small, only, on_bmv2), sep="\n", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(min(main(), 100))
