# SPDX-License-Identifier: Apache-2.0
"""Packets as the rules see them: admitted ones (docs/protocol.md, 5.1), so their epoch is their job's."""

from typing import NamedTuple

from inagg_simulator.reference import WORD_BYTES


class Sum(NamedTuple):
    """What a packet carries, and a slot holds.

    words: each as a number; none: the packet has no words, or the slot has had none yet, whose words are 0 then.
    """

    flags: int = 0
    exponent: int = 0
    flags_check: int = 0
    exponent_check: int = 0
    checksum: int = 0
    words: tuple[int, ...] = ()

    def added(self, other: "Sum") -> "Sum":
        """The sum with another contribution, or partial sum."""
        return Sum(
            self.flags | other.flags,
            max(self.exponent, other.exponent),
            self.flags_check | other.flags_check,
            max(self.exponent_check, other.exponent_check),
            (self.checksum + other.checksum) % 2**32,
            _add_words(self.words, other.words) if self.words and other.words else self.words or other.words,
        )


def _add_words(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    return tuple((x + y) % 2 ** (8 * WORD_BYTES) for x, y in zip(a, b, strict=True))


class Packet(NamedTuple):
    """A contribution, or a result from a switch above.

    members: the bits of those whose contributions it has; 0 from above.
    """

    job: int
    epoch: int
    chunk: int
    members: int
    sum: Sum = Sum()


class Query(NamedTuple):
    """A query, or an answer from a switch above."""

    job: int
    epoch: int
    chunk: int
    asker: int  # the bit; 0 from above
    # The ranks below the switch that has the asker's contribution in a shared slot, as far as switches know; 0: none.
    waits_with: int = 0


def age(a: int, b: int) -> int:
    """Serial-number arithmetic: positive when a is newer."""
    difference = (a - b) % 2**32
    return difference - 2**32 if difference >= 2**31 else difference
