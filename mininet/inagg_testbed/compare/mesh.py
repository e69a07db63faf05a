# SPDX-License-Identifier: Apache-2.0
"""The mesh of ranks of hybrid parallelism. Without torch."""

import math
import re
from dataclasses import dataclass

from inagg_testbed.errors import ConfigurationError

_WORD = re.compile(r"(dp|tp|pp)=([1-9][0-9]{0,3})")
_MOST_PARTS = 4  # blocks, and heads of a block, of examples/gpt.py


@dataclass(frozen=True)
class Mesh:
    """How many ranks are data, tensor and pipeline parallel. A rank's number counts tensor parallel ranks first, then
    data parallel ones: ranks that talk most are neighbours."""

    dp: int = 1
    tp: int = 1
    pp: int = 1

    names = ("pp", "dp", "tp")

    @classmethod
    def parse(cls, text: str) -> "Mesh":
        """From such as dp=2,tp=2,pp=2. Raises ConfigurationError."""
        words = [_WORD.fullmatch(word.strip()) for word in text.split(",")]
        given = {match[1]: int(match[2]) for match in words if match is not None}
        if None in words or len(given) < len(words):
            raise ConfigurationError(f"--mesh {text}: want such as dp=2,tp=2,pp=2")
        mesh = cls(**given)
        for name in ("tp", "pp"):
            if _MOST_PARTS % getattr(mesh, name):
                raise ConfigurationError(
                    f"--mesh {text}: the model has {_MOST_PARTS} blocks of {_MOST_PARTS} heads, so {name} is 1, 2 or 4"
                )
        return mesh

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes, in the order of `names`."""
        return tuple(getattr(self, name) for name in self.names)

    @property
    def parts(self) -> int:
        """Into how many the model is split."""
        return self.tp * self.pp

    @property
    def ranks(self) -> int:
        """Of all."""
        return math.prod(self.shape)

    def __str__(self) -> str:
        return f"dp={self.dp},tp={self.tp},pp={self.pp}"
