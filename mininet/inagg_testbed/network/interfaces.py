# SPDX-License-Identifier: Apache-2.0
"""Bytes that the kernel has counted at interfaces. Without Mininet: workers read them too."""

from pathlib import Path


def interface_bytes(pid: int) -> dict[str, tuple[int, int]]:
    """Received and sent bytes by interface, in the network namespace of a process. Raises OSError if it has ended."""
    found = {}
    for line in Path(f"/proc/{pid}/net/dev").read_text().splitlines():
        name, colon, numbers = line.strip().partition(":")
        if colon:
            values = numbers.split()
            found[name] = int(values[0]), int(values[8])
    return found
