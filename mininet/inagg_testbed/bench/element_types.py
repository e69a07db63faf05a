# SPDX-License-Identifier: Apache-2.0
"""The types of elements that `inagg bench allreduce` sums. Without torch and numpy, as the command line is."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

ElementName: TypeAlias = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True, kw_only=True)
class ElementType:
    """A float type, as torch names it.

    bits: of an element. significant_bits: of its significand, with the leading one. least: the exponent of its smallest
    subnormal number. lane_bits: of backends without `:BITS`, as in the library for large tensors of up to 8 ranks.
    """

    name: ElementName
    bits: int
    significant_bits: int
    least: int
    lane_bits: Literal[16, 32]

    @property
    def unit(self) -> float:
        """The greatest relative error of a number that is rounded to the type."""
        return 2.0**-self.significant_bits

    @property
    def floor(self) -> float:
        """The greatest error where numbers are subnormal."""
        return 2.0 ** (self.least - 1)


ELEMENT_TYPES: Mapping[ElementName, ElementType] = {
    one.name: one
    for one in (
        ElementType(name="float32", bits=32, significant_bits=24, least=-149, lane_bits=32),
        ElementType(name="bfloat16", bits=16, significant_bits=8, least=-133, lane_bits=16),
        ElementType(name="float16", bits=16, significant_bits=11, least=-24, lane_bits=16),
    )
}
