# SPDX-License-Identifier: Apache-2.0
"""How elements of every type travel as float32 elements. The core sums these, and half floats as these.

| type | as float32 | what comes back |
|---|---|---|
| float32 | itself | docs/protocol.md, 3.4 |
| float16, bfloat16 | each exactly one element, by default in 16-bit lanes | the float32 sum, rounded once |
| integers of 8 to 64 bits | one element for each digit | the sum modulo 2^bits, exact |

**Integers.** An integer is written in balanced digits of b = 25 - g bits, from -2^(b-1) to 2^(b-1) - 1, where g =
ceil(log2 N) for N ranks. With 32-bit lanes the sum of N digits is exact, for two reasons. A block's exponent is at most
b, so one step of its lanes is 2^(b - (31 - g)) = 2^-6 or less, and every digit is a multiple of the step. And the sum
is at most N 2^(b-1) <= 2^24 in magnitude, so float32 holds it exactly. The sums of the digits are combined modulo 2^64,
because integers wrap around.

float64 is not summed this way: digits of a common scale would silently lose small elements.
"""

import math

import torch

from inagg.options import Options
from inagg_contract.lanes import LaneWidth

# In integer tensors with more elements than this, digits take more time on a 100 Mbit/s link than the round trips of
# gloo's ring (docs/backend.md has the measurement).
MOST_INTEGERS = 4096

DEVICES = ("cpu", "cuda")  # the switch sums tensors on these

# The most ranks that, by default, sum a type in 16-bit lanes: these leave at least 10 fraction bits to bfloat16, which
# has 8 significant bits, and 12 to float16, which has 11. docs/protocol.md, 3.5, compares the errors with a ring's.
_MOST_RANKS_IN_16_BITS = {torch.bfloat16: 32, torch.float16: 8}
# In tensors with fewer half floats, these have 32-bit lanes: a few packets save no time, and a few numbers may be of
# different kinds, and so of different magnitudes, such as a loss beside a number of tokens.
LEAST_HALVES = 4097
HALVES = tuple(_MOST_RANKS_IN_16_BITS)

_FLOATS = frozenset({torch.float32, *HALVES})
_GLOO_INTEGERS = frozenset({torch.int8, torch.uint8, torch.int32, torch.int64})
_INTEGERS = _GLOO_INTEGERS | {torch.int16}


def summable(dtype: torch.dtype) -> bool:
    """Whether elements of this type can travel as float32 elements."""
    return dtype in _FLOATS or dtype in _INTEGERS


def is_integer(dtype: torch.dtype) -> bool:
    """Whether `dtype` is an integer type. Integers need 32-bit lanes and rounding to nearest."""
    return dtype in _INTEGERS


def lane_bits_of(dtype: torch.dtype, elements: int, ranks: int, options: Options) -> LaneWidth:
    """The lanes of a sum over `ranks` ranks of a tensor of this type with so many elements."""
    if dtype in _INTEGERS:
        return 32
    if dtype not in _MOST_RANKS_IN_16_BITS:
        return options.lane_bits
    if options.half_lane_bits is not None:
        return options.half_lane_bits
    narrow = ranks <= _MOST_RANKS_IN_16_BITS[dtype] and elements >= LEAST_HALVES
    return 16 if options.lane_bits == 32 and narrow else options.lane_bits


def digits(dtype: torch.dtype, ranks: int) -> int:
    """How many float32 elements an element of an integer type takes."""
    return math.ceil(torch.iinfo(dtype).bits / _digit_bits(ranks))


def is_contiguous_float32(tensor: torch.Tensor) -> bool:
    """Whether the core can sum the tensor in its own memory."""
    return (
        tensor.dtype == torch.float32
        and tensor.device.type in DEVICES
        and tensor.layout == torch.strided
        and tensor.is_contiguous()
        and not tensor.is_neg()
    )


def takes(tensor: torch.Tensor) -> bool:
    """Whether a tensor of this type, layout, size and device is summed through the switch."""
    gloo_is_better = tensor.dtype in _GLOO_INTEGERS and tensor.numel() > MOST_INTEGERS
    takes_type = summable(tensor.dtype) and not gloo_is_better
    return takes_type and tensor.device.type in DEVICES and tensor.layout == torch.strided


def encode(tensor: torch.Tensor, ranks: int, *, keep_halves: bool = False) -> torch.Tensor:
    """The elements of `tensor` (any shape and strides) for a sum over `ranks` ranks.

    keep_halves: half floats keep their type, because the core sums them where they are.

    Returns:
        float32 unless halves are kept, contiguous, of shape (k, elements): k is 1 for floats. Contiguous tensors whose
        type stays share their memory.
    """
    if not is_integer(tensor.dtype):
        floats = (tensor if keep_halves else tensor.to(torch.float32)).resolve_neg().contiguous()
        aligned = floats.data_ptr() % floats.element_size() == 0  # memory of another library's may not be
        return (floats if aligned else floats.clone()).view(1, -1)
    values = tensor.contiguous().view(-1).to(torch.int64)
    bits, count = _digit_bits(ranks), digits(tensor.dtype, ranks)
    half = 1 << (bits - 1)
    shifted = values + _wrapped(sum(half << (bits * k) for k in range(count)))
    encoded = torch.empty(count, values.numel(), dtype=torch.float32, device=values.device)
    for k in range(count):
        encoded[k] = ((shifted >> (bits * k)) & (2 * half - 1)) - half
    return encoded


def decode(sums: torch.Tensor, dtype: torch.dtype, ranks: int) -> torch.Tensor:
    """The sums of what `encode` returned, as `dtype`, one-dimensional."""
    if not is_integer(dtype):
        return sums[0].to(dtype)
    total = torch.zeros(sums.shape[1], dtype=torch.int64, device=sums.device)
    for k, row in enumerate(sums):
        total += row.to(torch.int64) * (1 << (_digit_bits(ranks) * k))
    return total.to(dtype)


def divide_(total: torch.Tensor, ranks: int) -> torch.Tensor:
    """The mean of integers: their sum modulo 2^bits, divided in place and rounded towards zero, as NCCL has it."""
    return total.div_(ranks, rounding_mode="trunc")


def _digit_bits(ranks: int) -> int:
    return 25 - math.ceil(math.log2(ranks))


def _wrapped(value: int) -> int:
    """`value` modulo 2^64, as an int64 holds it."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)
