# SPDX-License-Identifier: Apache-2.0
"""How the ranks of a group that is formed again find each other: by handles, and by a uuid for each formation.

A program exchanges the ranks' handles as it likes, and passes the same ones and a new uuid to `reconfigure` on each
rank, as with torch's gloo. The ranks then meet under the uuid in the store that their groups were made with.
"""

import hashlib
import operator
import os
import secrets
from collections.abc import Collection, Set
from typing import Any, NamedTuple, Self

from torch.distributed.distributed_c10d import PrefixStore, Store

from inagg.errors import ConfigurationError, JobError
from inagg.membership.session import FORKED

ADVICE = "Every rank whose handle was passed must call reconfigure, with the same uuid and handles."  # if one is late

_KIND = "inagg"
_NEVER = -1  # the uuid before the first formation


class Handle(NamedTuple):
    """A rank, as others name it.

    made_as: its rank when its group was made, by which sets are ordered. uuid: of the formation that it is in; -1
    before the first. process: differs between a process and another one that replaces it.
    """

    made_as: int
    uuid: int
    process: str

    def __str__(self) -> str:
        return f"{_KIND}:{self.made_as}:{self.uuid}:{self.process}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ConfigurationError."""
        try:
            kind, made_as, uuid, process = text.split(":")
            if kind != _KIND:
                raise ValueError
            return cls(int(made_as), int(uuid), process)
        except ValueError:
            raise ConfigurationError(
                f"{text!r} is not a handle of an inagg group: pass what get_reconfigure_handle() returned at each rank"
            ) from None


def number_of(uuid: Any) -> int:
    """The uuid as handles have it. Raises ConfigurationError: it is no integer, or -1, the uuid before the first."""
    try:
        number = int(operator.index(uuid))
    except TypeError:
        raise ConfigurationError(f"reconfigure needs an integer as its uuid, got {uuid!r}") from None
    if number == _NEVER:
        raise ConfigurationError(
            "reconfigure needs another uuid than -1, the uuid of a group that was never formed"
        )
    return number


def by_rank(handles: Any) -> list[str]:
    """The handles of ranks 0, 1, ...: a list's order, or of a set the order in which its ranks' groups were numbered.

    Raises:
        ConfigurationError: it is no collection of strings, or is empty; a handle is there twice, or is not inagg's.
    """
    one = isinstance(handles, str | bytes)
    if one or not isinstance(handles, Collection) or not all(isinstance(handle, str) for handle in handles):
        raise ConfigurationError(
            "reconfigure needs a list or a set of what get_reconfigure_handle() returned at each rank, got "
            f"{handles!r}"
        )
    parsed = {handle: Handle.parse(handle) for handle in handles}
    if not parsed:
        raise ConfigurationError("reconfigure needs the handle of at least one rank, its own")
    if len(parsed) < len(handles):
        raise ConfigurationError(f"reconfigure needs each rank's handle once, got {sorted(handles)}")
    return sorted(parsed, key=parsed.__getitem__) if isinstance(handles, Set) else list(handles)


class Formations:
    """One rank's handle, and the formations that it begins.

    Args:
        store: shared by all ranks that may ever be members.
        made_as: this rank when its group was made.
    """

    def __init__(self, store: Store, made_as: int) -> None:
        self.handle = Handle(made_as, _NEVER, secrets.token_hex(4))
        self._store = store
        self._made_by = os.getpid()

    def begin(self, uuid: int, members: list[str]) -> tuple[Store, int, int]:
        """Claim the uuid, from `number_of`, for these members, from `by_rank`.

        Returns:
            Keys that only they share, this process's rank, and the number of ranks.

        Raises:
            ConfigurationError: this rank's handle is not there.
            JobError: other members have claimed the uuid, or this process was forked from a rank.
        """
        if os.getpid() != self._made_by:
            raise JobError(FORKED, rank=self.handle.made_as)
        own = str(self.handle)
        if own not in members:
            raise ConfigurationError(
                f"this rank's handle, {own}, is not one of {members}: a handle holds until the group is formed again"
            )
        store = PrefixStore(f"reconfigure/{uuid}", self._store)
        # The handles name what their ranks were in before, so not even the same ranks claim a uuid twice.
        digest = hashlib.sha256(" ".join(members).encode()).hexdigest()
        if store.compare_set("members", "", digest).decode() != digest:
            raise JobError(
                f"uuid {uuid} was already used, for other handles: every reconfigure needs a new uuid, and all ranks "
                "must pass the same handles",
                rank=members.index(own),
            )
        return store, members.index(own), len(members)

    def formed(self, uuid: int) -> None:
        """This rank is in the formation of this uuid."""
        self.handle = self.handle._replace(uuid=uuid)
