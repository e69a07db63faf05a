# SPDX-License-Identifier: Apache-2.0
"""C++ string literals."""


def c_string(text: str) -> str:
    """UTF-8; whatever is not plain ASCII as its bytes in octal, which no digit that follows can prolong."""
    return f'"{"".join(_spelt(byte) for byte in text.encode())}"'


def byte_string(data: bytes) -> str:
    """The bytes of a literal, as a const std::uint8_t*."""
    escaped = "".join(f"\\{byte:03o}" for byte in data)
    return f'reinterpret_cast<const std::uint8_t*>("{escaped}")'


def _spelt(byte: int) -> str:
    character = chr(byte)
    return character if " " <= character <= "~" and character not in '"\\?' else f"\\{byte:03o}"
