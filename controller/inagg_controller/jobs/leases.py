# SPDX-License-Identifier: Apache-2.0
"""Leases of slot versions, and numbers that are reused as late as possible.

A lease is 2S consecutive slot versions, where S is a power of two. Each lease is aligned to its size and taken from the
smallest hole that fits, so that freed neighbours merge into holes of the requested sizes, as in a buddy allocator.
"""

from dataclasses import dataclass

FEWEST_SLOTS = 2


@dataclass(frozen=True, slots=True)
class Lease:
    """Slot versions base to base + size - 1."""

    base: int
    size: int


class LeasePool:
    """Leases of a pool of slot versions; no two overlap."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._leases: dict[int, Lease] = {}

    @property
    def leases(self) -> tuple[Lease, ...]:
        """Every lease, lowest first."""
        return tuple(self._leases[base] for base in sorted(self._leases))

    @property
    def free(self) -> int:
        """Number of slot versions that are not leased."""
        return self.size - sum(lease.size for lease in self._leases.values())

    def take(self, size: int) -> Lease | None:
        """Lease `size` slot versions, a power of two; None if no aligned hole is large enough."""
        fitting = []
        for start, end in self._holes():
            base = -(-start // size) * size
            if base + size <= end:
                fitting.append((end - start, base))
        if not fitting:
            return None
        lease = Lease(min(fitting)[1], size)
        self._leases[lease.base] = lease
        return lease

    def claim(self, lease: Lease) -> bool:
        """Lease exactly this again, after a restart. Returns whether it is free."""
        free = any(start <= lease.base and lease.base + lease.size <= end for start, end in self._holes())
        if free:
            self._leases[lease.base] = lease
        return free

    def give_back(self, lease: Lease) -> None:
        """End a lease that take() returned. Raises ValueError if it is not leased."""
        if self._leases.get(lease.base) != lease:
            raise ValueError(f"{lease} is not leased")
        del self._leases[lease.base]

    def _holes(self) -> list[tuple[int, int]]:
        holes = []
        start = 0
        for lease in self.leases:
            if lease.base > start:
                holes.append((start, lease.base))
            start = lease.base + lease.size
        if start < self.size:
            holes.append((start, self.size))
        return holes


class Numbers:
    """Assigns numbers from first to last in turn, so that a number is reused as late as possible.

    A packet or a worker of the number's previous owner may still exist. next: where the search for the next one begins.
    """

    def __init__(self, first: int, last: int) -> None:
        self.next = first
        self._first = first
        self._last = last
        self._used: set[int] = set()

    def take(self) -> int | None:
        """The next number not in use; None if all are in use."""
        if len(self._used) > self._last - self._first:
            return None
        while self.next in self._used:
            self.next = self._after(self.next)
        number = self.next
        self._used.add(number)
        self.next = self._after(number)
        return number

    def claim(self, number: int) -> None:
        """Use a number that is not in use, after a restart."""
        self._used.add(number)

    def give_back(self, number: int) -> None:
        """End the use of a number."""
        self._used.remove(number)

    def _after(self, number: int) -> int:
        return self._first if number == self._last else number + 1
