# SPDX-License-Identifier: Apache-2.0
"""The epochs of a controller, and the first chunks: 32-bit numbers that nobody without the key can foretell.

Epoch n is the n-th value of a keyed permutation of the 32-bit numbers: a Feistel network (Luby and Rackoff, 1988) whose
round function is BLAKE2b with the controller's key. A permutation repeats nothing, so the controller keeps only the key
and a count. First chunks may repeat: each is a digest of the epoch.
"""

import secrets
from hashlib import blake2b

KEY_BYTES = 32
_ROUNDS = 8
_EPOCHS = 2**32
_HALF_BITS = 16
_HALF_MASK = (1 << _HALF_BITS) - 1


class Epochs:
    """The epochs that a controller has left, in their order.

    key: KEY_BYTES. count: how many numbers of the permutation have been used. above: epochs up to this one are left
    out: 0, which no job has, and what an earlier version of the controller has counted up to.
    """

    def __init__(self, key: bytes, count: int = 0, above: int = 0) -> None:
        self.key, self.count, self.above = key, count, above
        self._next = self._find()

    @classmethod
    def fresh(cls) -> "Epochs":
        """Those of a controller without a state: of a random key, so they hardly ever meet those of another key."""
        return cls(secrets.token_bytes(KEY_BYTES))

    @property
    def exhausted(self) -> bool:
        """Whether every epoch has been used."""
        return self._next is None

    def take(self) -> int:
        """An epoch that has not been used. There must be one (`exhausted`)."""
        epoch = self._next
        assert epoch is not None
        self.count += 1
        self._next = self._find()
        return epoch

    def first_chunk(self, epoch: int, slots: int) -> int:
        """The first chunk of the way of an epoch, a multiple of two times `slots`, a power of two."""
        return self._hash(b"first chunk" + epoch.to_bytes(4, "big"), 4) & -2 * slots

    def _find(self) -> int | None:
        while self.count < _EPOCHS:
            epoch = self._permuted(self.count)
            if epoch > self.above:
                return epoch
            self.count += 1
        return None

    def _permuted(self, number: int) -> int:
        left, right = number >> _HALF_BITS, number & _HALF_MASK
        for turn in range(_ROUNDS):
            left, right = right, left ^ self._hash(bytes([turn]) + right.to_bytes(2, "big"), 2)
        return left << _HALF_BITS | right

    def _hash(self, data: bytes, size: int) -> int:
        return int.from_bytes(blake2b(data, digest_size=size, key=self.key).digest(), "big")
