# SPDX-License-Identifier: Apache-2.0
"""Records a training on a testbed: the ranks' files, and the packets at the ports of all switches."""

import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from inagg.spans import VARIABLE
from inagg_testbed.network.control import call_in_network_namespace
from inagg_testbed.network.fabric import CONTROL_PORT, SwitchPort
from inagg_testbed.network.testbed import Testbed
from inagg_testbed.network.topology import port_interface
from inagg_testbed.trace.events import make_trace
from inagg_testbed.trace.packet_ring import PacketRing
from inagg_testbed.trace.passages import Passage, read_passages
from inagg_testbed.trace.ranks import read_ranks

_KEEP_BYTES = 256 << 20  # of all switches: some million packets
_HEADERS_BYTES = 64


class Recording:
    """Begins when it is made. Raises NetworkError if the kernel refuses."""

    def __init__(self, testbed: Testbed) -> None:
        self._testbed = testbed
        self._folder: Path = testbed.results / "trace"
        self._rings: dict[str, PacketRing] = {}
        switches = testbed.network.fabric.switches if testbed.has_switch else ()
        try:
            for switch in switches:
                pid = testbed.run.manifest.namespace(switch).pid
                keep = _KEEP_BYTES // len(switches)
                self._rings[switch] = PacketRing(pid, keep=keep, cut=_HEADERS_BYTES)
        except BaseException:
            self.close()
            raise

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables of the ranks."""
        return {VARIABLE: str(self._folder)}

    def close(self) -> None:
        """End."""
        for ring in self._rings.values():
            ring.close()

    def trace(self, steps: int) -> dict[str, Any]:
        """The last steps, after the ranks have ended and `close`. Raises ConfigurationError."""
        return make_trace(read_ranks(self._folder), self._passages(), steps=steps)

    @property
    def dropped(self) -> int:
        """Packets that the kernel had no memory for."""
        return sum(ring.dropped for ring in self._rings.values())

    def _passages(self) -> Iterator[Passage]:
        for switch, ring in self._rings.items():
            yield from read_passages(switch, self._ports(switch), ring.frames())

    def _ports(self, switch: str) -> dict[int, str]:
        """What each port of a switch leads to, by the index of its interface."""
        run, fabric = self._testbed.run, self._testbed.network.fabric
        known = call_in_network_namespace(
            run.manifest.namespace(switch).pid,
            lambda: {name: number for number, name in socket.if_nameindex()},
        )
        return {
            known[port_interface(run.id, port)]: fabric.neighbours[SwitchPort(switch, port)]
            for port in fabric.ports(switch)
            if port != CONTROL_PORT
        }
