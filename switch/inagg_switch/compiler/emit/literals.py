# SPDX-License-Identifier: Apache-2.0
"""C++ string literals."""


def c_string(text: str) -> str:
    """A literal of the text in UTF-8. Bytes that are not printable ASCII become three octal digits, which a following
    digit cannot extend."""
    return f'"{"".join(_spelt(byte) for byte in text.encode())}"'


def byte_string(data: bytes) -> str:
    """A const std::uint8_t* to the bytes, as a literal."""
    escaped = "".join(f"\\{byte:03o}" for byte in data)
    return f'reinterpret_cast<const std::uint8_t*>("{escaped}")'


def _spelt(byte: int) -> str:
    character = chr(byte)
    return character if " " <= character <= "~" and character not in '"\\?' else f"\\{byte:03o}"
