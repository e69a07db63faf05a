# SPDX-License-Identifier: Apache-2.0
"""P4Runtime binary strings: big-endian, shortest form (P4Runtime specification, "Bytestrings").

Invalid values are INVALID_ARGUMENT, as in the specification's sections on matches and actions, and in BMv2.
"""

from inagg_switch.p4runtime.errors import invalid


def byte_width(bit_width: int) -> int:
    """Bytes of a value of `bit_width` bits in runtime/program.h's form."""
    return (bit_width + 7) // 8


def parse_value(value: bytes, bit_width: int, subject: str) -> int:
    """The number in a binary string. Raises RequestError if the string is empty or the number needs more bits.

    bit_width 0: the type is translated to a string, so there is no number.
    """
    if not bit_width:
        raise invalid(
            f"{subject}: its type is translated to a string or a name, which the program does not know"
        )
    if not value:
        raise invalid(f"{subject}: the value is empty")
    number = int.from_bytes(value, "big")
    if number.bit_length() > bit_width:
        raise invalid(f"{subject}: 0x{value[:40].hex()} does not fit into {bit_width} bits")
    return number


def full_width(number: int, bit_width: int) -> bytes:
    """`number` in the program's form: big-endian, with all bytes of its width."""
    return number.to_bytes(byte_width(bit_width), "big")


def canonical(value: bytes) -> bytes:
    """The shortest binary string with the same number; one byte for zero."""
    return value.lstrip(b"\0") or b"\0"
