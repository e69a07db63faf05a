# SPDX-License-Identifier: Apache-2.0
"""What the faults of a scenario do to a world."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulation.scenario import Fault

if TYPE_CHECKING:
    from tests.simulation.world import World


def strike(world: "World", fault: Fault) -> None:
    """A fault begins."""
    hit, undo = _FAULTS[fault.kind](world, fault)
    world.tell(fault.kind + (f" ({hit})" if hit else "") + (f" for {fault.seconds:.3f} s" if undo else ""))
    if undo is not None:
        world.at(world.network.now + fault.seconds, undo)


# What is hit, and what ends the fault; None: it does not last.
_Struck = tuple[str, Callable[[], object] | None]


def _switch_dies(world: "World", fault: Fault) -> _Struck:
    box = list(world.wires.boxes.values())[fault.which % len(world.wires.boxes)]

    def miss() -> None:
        if world.control.alive and not box.alive:
            with world.deciding():
                world.control.lose_switch(box.name, world.network.now)

    def start() -> None:
        world.tell(f"{box.name} starts again")
        miss()
        if not box.alive:
            box.start()
        if world.control.alive:
            with world.deciding():
                world.control.table.switches.connected(box.name)
                world.control.table.changing.advance_all(world.network.now)

    box.die()
    world.at(world.network.now + 0.05, miss)
    return box.name, start


def _switch_stops(world: "World", fault: Fault) -> _Struck:
    box = list(world.wires.boxes.values())[fault.which % len(world.wires.boxes)]

    def go_on() -> None:
        box.still = False
        world.drive_soon()

    box.still = True
    return box.name, go_on


def _cable_is_cut(world: "World", fault: Fault) -> _Struck:
    links = world.wires.topology.links
    link = links[fault.which % len(links)]
    world.wires.broken.add(link)
    return str(link), lambda: world.wires.broken.discard(link)


def _server_ends(world: "World", fault: Fault) -> _Struck:
    rank = world.ranks[fault.which % len(world.ranks)]
    rank.break_server()
    return rank.title, None


def _registered_server_dies(world: "World", fault: Fault) -> _Struck:
    server = world.servers[fault.which % len(world.servers)]
    server.die()
    return server.name, server.start


def _rank_stops(world: "World", fault: Fault) -> _Struck:
    rank = world.ranks[fault.which % len(world.ranks)]
    world.network.still[rank.link] = world.network.now + fault.seconds
    return rank.title, lambda: None


def _link_is_cut(world: "World", fault: Fault) -> _Struck:
    rank = world.ranks[fault.which % len(world.ranks)]
    world.network.cut.add(rank.link)
    return rank.title, lambda: world.network.cut.discard(rank.link)


def _controller_dies(world: "World", fault: Fault) -> _Struck:
    def start() -> None:
        if not world.control.alive:
            world.tell("the controller starts again")
            with world.deciding():
                world.control.start(world.network.now)

    world.control.die()
    return "", start


def _rank_is_cut_off(world: "World", fault: Fault) -> _Struck:
    rank = world.ranks[fault.which % len(world.ranks)]
    world.cut_off.add(rank.link)
    return rank.title, lambda: world.cut_off.discard(rank.link)


def _suspicion(world: "World", fault: Fault) -> _Struck:
    rank = world.ranks[fault.which % len(world.ranks)]
    rank.suspect()
    return rank.title, None


def _bit_flips(world: "World", fault: Fault) -> _Struck:
    links = [*range(len(world.ranks)), *range(2 * len(world.ranks), world.wires.links)]
    link = links[fault.which % len(links)]
    world.network.flips.add(link)
    return f"on link {link}", None


_FAULTS = {
    "switch dies": _switch_dies,
    "switch stops": _switch_stops,
    "cable is cut": _cable_is_cut,
    "server ends": _server_ends,
    "registered server dies": _registered_server_dies,
    "rank stops": _rank_stops,
    "link is cut": _link_is_cut,
    "controller dies": _controller_dies,
    "rank is cut off": _rank_is_cut_off,
    "suspicion": _suspicion,
    "bit flips": _bit_flips,
}
