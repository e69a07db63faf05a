# SPDX-License-Identifier: Apache-2.0
"""Numbers for a table's entries, which P4Runtime identifies by their keys."""

from collections.abc import Iterable

from inagg_switch.p4runtime.entities.entries import EntryTuple, Key, entry_key


class Handles:
    """Handle -> key of the entries of one table. Handles count up from 0 and are not used again."""

    def __init__(self) -> None:
        self._by_key: dict[Key, int] = {}
        self._next = 0

    def update(self, entries: Iterable[EntryTuple]) -> None:
        """Forget entries that are gone; give handles to entries that P4Runtime controllers or the program have made."""
        keys = [entry_key(entry) for entry in entries]
        present = set(keys)
        self._by_key = {key: handle for key, handle in self._by_key.items() if key in present}
        for key in keys:
            self.of(key)

    def of(self, key: Key) -> int:
        """The handle of an entry; a new one if it has none."""
        if key not in self._by_key:
            self._by_key[key] = self._next
            self._next += 1
        return self._by_key[key]

    def key(self, handle: int) -> Key | None:
        """The key of an entry; None if there is no such handle."""
        return next((key for key, known in self._by_key.items() if known == handle), None)

    def in_order(self) -> list[tuple[int, Key]]:
        """All handles and their keys."""
        return sorted(((handle, key) for key, handle in self._by_key.items()), key=lambda item: item[0])
