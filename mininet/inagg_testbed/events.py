# SPDX-License-Identifier: Apache-2.0
"""How a worker reports: an event file with one JSON object a line, and the counters of its network namespace.

Without a path, events are discarded, so that a worker script runs under any launcher.
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


def transmitted_bytes(prefix: str) -> int:
    """Bytes that the interfaces of this network namespace whose names begin with `prefix` have sent (/proc/net/dev).

    Ethernet headers are included. Raises KeyError if there is no such interface.
    """
    lines = [line.partition(":") for line in Path("/proc/self/net/dev").read_text().splitlines()]
    sent = [
        int(numbers.split()[8]) for name, _, numbers in lines if numbers and name.strip().startswith(prefix)
    ]
    if not sent:
        raise KeyError(f"no interface {prefix}* in this network namespace")
    return sum(sent)


def sent_segments() -> tuple[int, int]:
    """TCP segments sent by this network namespace: (all, retransmitted ones).

    From /proc/net/snmp: OutSegs (which excludes retransmissions) and RetransSegs of RFC 4022. A GSO segment counts as
    the packets it is segmented into.
    """
    rows = [
        line.split()
        for line in Path("/proc/self/net/snmp").read_text().splitlines()
        if line.startswith("Tcp:")
    ]
    first, again = (int(rows[1][rows[0].index(name)]) for name in ("OutSegs", "RetransSegs"))
    return first + again, again


def tcp_timeouts() -> int:
    """Retransmission timeouts of this network namespace's TCP connections: TCPTimeouts of /proc/net/netstat."""
    names, values = (
        line.split()
        for line in Path("/proc/self/net/netstat").read_text().splitlines()
        if line.startswith("TcpExt:")
    )
    return int(values[names.index("TCPTimeouts")])
