# SPDX-License-Identifier: Apache-2.0
"""A worker's side of the event file: one JSON object a line, written when it happens.

Without a path the events go nowhere, so that a worker script runs under any launcher.
"""

import json
from pathlib import Path
from typing import Any


class EventLog:
    """Appends events to a file."""

    def __init__(self, path: Path | None) -> None:
        self._file = None if path is None else path.open("a", buffering=1)

    def write(self, event: str, **values: Any) -> None:
        """Append one event."""
        if self._file is not None:
            self._file.write(json.dumps({"event": event, **values}) + "\n")


def transmitted_bytes(interface: str) -> int:
    """Bytes an interface of this network namespace has sent, Ethernet headers included (/proc/net/dev)."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == interface:
            return int(numbers.split()[8])
    raise KeyError(f"no interface {interface} in this network namespace")


def sent_segments() -> tuple[int, int]:
    """TCP segments this network namespace has sent, and those of them it sent again (OutSegs, without retransmissions,
    and RetransSegs of RFC 4022; /proc/net/snmp). A large segment counts as the packets it is cut into."""
    rows = [
        line.split()
        for line in Path("/proc/self/net/snmp").read_text().splitlines()
        if line.startswith("Tcp:")
    ]
    first, again = (int(rows[1][rows[0].index(name)]) for name in ("OutSegs", "RetransSegs"))
    return first + again, again
