# SPDX-License-Identifier: Apache-2.0
"""Bytes of frames on the hosts' links, as the kernel counts them at the switches' ends (`network.traffic`)."""

from collections.abc import Sequence

from inagg_testbed.network.interfaces import interface_bytes

Interface = tuple[int, str]  # a process in its network namespace, and its name


class HostLinks:
    """The links of hosts, each with its interfaces: at the switch and, if gloo has its own links, at a bridge."""

    def __init__(self, links: Sequence[Sequence[Interface]]) -> None:
        self._links = links
        self._pids = {pid for link in links for pid, _ in link}

    def read(self) -> list[tuple[int, int]]:
        """Bytes from and to each host so far."""
        counted = {pid: interface_bytes(pid) for pid in self._pids}
        ends = [[counted[pid][name] for pid, name in link] for link in self._links]
        return [(sum(up for up, _ in link), sum(down for _, down in link)) for link in ends]


def busiest(before: Sequence[tuple[int, int]], after: Sequence[tuple[int, int]]) -> int:
    """Bytes in the busier direction of the busiest link between two readings; 0 without links."""
    pairs = zip(before, after, strict=True)
    return max((new - old for link in pairs for old, new in zip(*link, strict=True)), default=0)
