# SPDX-License-Identifier: Apache-2.0
"""Compares the P4 program and the C++ server with the rules of slots in every state of larger jobs than the tests do
(`make explore`; two minutes)."""

import time

from inagg_simulator import p4_switch
from inagg_simulator.slot_rules.packets import Sum
from inagg_simulator.slot_rules.versions import Version
from tests.conformance.states.exploration import Implementation, Model, P, S, compare
from tests.conformance.states.shared import (
    COLOCATED_JOBS,
    JOBS,
    SLOT_VERSIONS,
    SharedSlot,
    SharedSlotInP4,
    make_fabric,
)
from tests.conformance.states.versions import (
    BehindShared,
    Leased,
    LeasedInP4,
    LeasedInServer,
    RelayedServer,
)

LEFTOVER = Version(1, 2**31 - 5, 0b111, Sum(0x20, 600, 0x20, 941, 0xABCDEF, (2**2048 - 1,)), final=True)
ROOTS = {
    "2 workers, 6 chunks": Leased(workers=2, chunks=6),
    "3 workers, 3 chunks": Leased(workers=3, chunks=3),
    "2 workers, 2 slots": Leased(workers=2, chunks=4, slots=2),
    "2 workers, 5 chunks, across the wrap": Leased(workers=2, chunks=5, first_chunk=2**32 - 2),
}
LEAVES = {
    "a leaf of 2 workers, 3 chunks, 2 roots": Leased(workers=2, chunks=3, slots=2, above=(5, 6)),
    "a leaf of 3 workers, empty slots": Leased(workers=3, chunks=2, above=(5,)),
}
OTHERS = {
    "3 workers, another job's slot": Leased(workers=3, chunks=2, leftover=LEFTOVER),
    "a leaf of 3 workers": Leased(workers=3, chunks=2, above=(5,), leftover=LEFTOVER),
}


def report(name: str, model: Model[S, P], implementation: Implementation[S, P]) -> None:
    began = time.monotonic()
    count = compare(model, implementation)
    print(f"{name}: {count} packets in states, {time.monotonic() - began:.0f} s", flush=True)


def main() -> None:
    """Print the size of each comparison. Raises DifferenceError."""
    with p4_switch.load(1, SLOT_VERSIONS) as root, p4_switch.load(1, SLOT_VERSIONS) as leaf:
        for servers, jobs in (("registered", JOBS), ("colocated", COLOCATED_JOBS)):
            fabric = make_fabric([root, leaf], jobs)
            for name, program in (("s0", root), ("s1", leaf)):
                shared = SharedSlot(fabric, name, chunks=4)
                report(
                    f"the shared slot of {name}, {servers} servers", shared, SharedSlotInP4(program, shared)
                )
            fabric.remove()
    for home in (None, 1):
        behind = BehindShared(chunks=3, exponents=(0, 1, 2), home=home)
        report(f"a server behind shared slots, at home: {home}", behind, RelayedServer(behind))
    for name, model in (ROOTS | LEAVES).items():
        report(f"a server, {name}", model, LeasedInServer(model))
    for name, model in (ROOTS | LEAVES | OTHERS).items():
        with p4_switch.load(1, SLOT_VERSIONS) as program:
            report(f"the P4 program, {name}", model, LeasedInP4(program, model))


if __name__ == "__main__":
    main()
