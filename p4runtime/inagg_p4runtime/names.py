# SPDX-License-Identifier: Apache-2.0
"""Names of a program's objects, of which users give and see the last parts, and of metadata."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")

# Trailing metadata of GetForwardingPipelineConfig: how many threads of the switch divide the packets. The switch model
# has it.
THREADS = "inagg-switch-threads"


def called(objects: Iterable[T], name: str, name_of: Callable[[T], str]) -> list[T]:
    """The objects with a name; if there is none, those whose name ends with a dot and `name`."""
    known = list(objects)
    whole = [each for each in known if name_of(each) == name]
    return whole or [each for each in known if name_of(each).endswith(f".{name}")]


def short_names(names: Sequence[str]) -> tuple[str, ...]:
    """Each name's last part, as in docs/protocol.md; the full name if another has the same last part."""
    last_parts = [name.rpartition(".")[2] for name in names]
    return tuple(
        last if last_parts.count(last) == 1 else name for name, last in zip(names, last_parts, strict=True)
    )
