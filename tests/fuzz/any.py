# SPDX-License-Identifier: Apache-2.0
"""Runs any program on the model and on BMv2, with random entries and packets, and shows vectors on which they differ.

python -m tests.fuzz.any prog.p4 --seeds 1..20 [--packets 40] [--keep DIR]

Packets follow the paths of the program's parser. Keys of entries have the same few values as headers, and constants of
the program. Timestamps, random(), and fields of headers that were never valid (BMv2 shows those of an earlier packet)
always differ. Therefore packets that differ after other packets, but not when sent alone, are left out and counted.
"""

import argparse
import copy
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from p4.config.v1.p4info_pb2 import P4Info

from inagg_switch import Switch, SwitchError
from inagg_switch.vectors.format import Cell, Packet, Vectors
from inagg_switch.vectors.run import lines_of, set_up
from tests.fuzz.any_vectors import VectorGenerator
from tests.fuzz.seeds import seeds_of
from tests.switch import bmv2
from tests.switch.bmv2_vectors import StateError, run_config

_TRIES = 60  # runs of BMv2 to make a case smaller, at most
_LEFT_OUT = 20  # packets left out of a seed, at most


@dataclass
class Difference:
    """A difference between the model and BMv2. `packet` is None if only counters or registers differ."""

    text: str
    packet: Packet | None = None

    def __str__(self) -> str:
        return self.text


def expect_model(program: Path, vectors: Vectors, cells: int = 16) -> Vectors:
    """The vectors with the model's outputs and the first cells of its counters and registers."""
    expected = copy.deepcopy(vectors)
    with Switch.from_p4(program) as switch:
        set_up(switch, expected)
        for packet in expected.packets:
            packet.expected = switch.process(packet.port, packet.frame)
        for info in switch.layout.counters:
            counter, name = switch.counter(info.preamble.name), info.preamble.name
            expected.counters += [Cell(name, i, counter[i]) for i in range(min(cells, len(counter)))]
        for info in switch.layout.registers:
            register, name = switch.register(info.preamble.name), info.preamble.name
            shown = ((i, register[i]) for i in range(min(cells, len(register))))
            # BMv2 shows no larger values.
            expected.registers += [Cell(name, i, (value,)) for i, value in shown if value < 1 << 63]
        for info in switch.layout.direct_counters:
            table = next(
                t for t in switch.layout.tables if t.preamble.id == info.direct_table_id
            ).preamble.name
            first = len(switch.entries(table)) - len([e for e in expected.inserts if e.table == table])
            if first == 0:  # BMv2's handles count the entries of the program too
                for number, entry in enumerate(e for e in expected.inserts if e.table == table):
                    counted = switch.direct_counter(table, entry.match, entry.priority)
                    expected.direct_counters.append(Cell(table, number, counted))
    return expected


def difference(config: Path, program: Path, vectors: Vectors) -> Difference | None:
    """The first difference between the model and BMv2. Raises SwitchError or bmv2.Bmv2Error."""
    with Switch.from_p4(program) as switch:
        info = switch.layout
    expected = expect_model(program, vectors)
    state = None
    try:
        seen = run_config(config, info, expected)
    except StateError as error:
        state, seen = Difference(str(error)), error.out
    for given, packet, out in zip(vectors.packets, expected.packets, seen, strict=False):
        if sorted(packet.expected) != sorted(out):
            one, other = (
                "; ".join(f"{p}:{f.hex()}" for p, f in o) or "nothing" for o in (packet.expected, out)
            )
            said = f"packet {packet.port} {packet.frame.hex()}\n  model: {one}\n  BMv2:  {other}"
            return Difference(said, given)
    if len(seen) > len(expected.packets):
        return Difference(f"BMv2 sends more: {[(p, f.hex()) for p, f in seen[-1]]}")
    return state


def minimise(vectors: Vectors, differs: Callable[[Vectors], bool]) -> Vectors:
    """Removes packets, entries and defaults, half of them first, as long as the difference remains."""
    tries = _TRIES
    for name in ("groups", "clones", "meters", "value_sets"):
        smaller = replace(vectors, **{name: type(getattr(vectors, name))()})
        if differs(smaller):
            vectors = smaller
    for name in ("packets", "inserts", "defaults"):
        size = (len(getattr(vectors, name)) + 1) // 2
        while size > 0 and tries > 0:
            at = 0
            while at < len(getattr(vectors, name)) and tries > 0:
                smaller = copy.deepcopy(vectors)
                del getattr(smaller, name)[at : at + size]
                tries -= 1
                if differs(smaller):
                    vectors = smaller
                else:
                    at += size
            size //= 2
    return vectors


def check(program: Path, seeds: range, packets: int, keep: Path | None) -> int:
    """Compares the model with BMv2 on a program; returns how many seeds differ. Raises SwitchError or
    bmv2.Bmv2Error."""
    with Switch.from_p4(program) as switch:
        info = switch.layout
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="inagg-fuzz-") as folder:
        config = bmv2.compile_p4(program, Path(folder))
        described = json.loads(config.read_text())
        for seed in seeds:
            vectors = VectorGenerator(info, described, seed).vectors(packets)
            left_out = 0
            found = difference(config, program, vectors)
            while found is not None and found.packet is not None and left_out < _LEFT_OUT:
                alone = replace(vectors, packets=[found.packet])
                if difference(config, program, alone) is not None:
                    vectors = alone
                    break
                vectors.packets.remove(found.packet)
                left_out += 1
                found = difference(config, program, vectors)
            also = f" ({left_out} packets left out)" if left_out else ""
            print(f"{program.name} seed {seed}: {'same' if found is None else 'differs'}{also}", flush=True)
            if found is not None:
                wrong += 1
                text = _small(config, program, info, vectors)
                print(text, flush=True)
                if keep is not None:
                    (keep / f"{program.stem}-{seed}.vectors").write_text(text)
    return wrong


def _small(config: Path, program: Path, info: P4Info, vectors: Vectors) -> str:
    """A few vectors that still differ, as the text of a vectors file, with the difference in a comment."""

    def differs(smaller: Vectors) -> bool:
        try:
            return difference(config, program, smaller) is not None
        except (SwitchError, bmv2.Bmv2Error):
            return False

    small = minimise(vectors, differs)
    how = "".join(f"# {line}\n" for line in str(difference(config, program, small)).splitlines())
    return how + "\n".join(lines_of(expect_model(program, small, 0), info)) + "\n"


def main() -> int:
    """The command line; returns how many seeds differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("programs", type=Path, nargs="+", metavar="PROGRAM.p4")
    parser.add_argument("--seeds", type=seeds_of, default=range(1, 6), help="N or FIRST..LAST")
    parser.add_argument("--packets", type=int, default=40, help="for each seed")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="write the vectors that differ here")
    arguments = parser.parse_args()
    wrong = 0
    for program in arguments.programs:
        try:
            wrong += check(program, arguments.seeds, arguments.packets, arguments.keep)
        except (SwitchError, bmv2.Bmv2Error) as error:
            print(f"{program.name}: no verdict: {str(error)[-500:]}", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(min(main(), 100))
