# SPDX-License-Identifier: Apache-2.0
"""Meters, clone sessions, action profiles, value sets and digests of a running program, by P4Info id.

These are the calls of runtime/program.h with Python types. A refused call raises OSError with the program's errno. The
calls are short and rare, so they take the program's lock from Python; frequent calls are in ports/control/control.hpp.
"""

import ctypes
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from inagg_switch.program import abi
from inagg_switch.program.lock import ProgramLock


class MeterConfig(NamedTuple):
    """Two rates and their bursts (RFC 2698). Rates are in packets or bytes a second, bursts in packets or bytes."""

    cir: int
    cburst: int
    pir: int
    pburst: int


# (value, mask or high, prefix length), as in _ports.pyi.
MatchTuple = tuple[bytes | None, bytes | None, int]


class Externs:
    """The calls of one program. Thread-safe until the program is closed."""

    def __init__(self, lock: ProgramLock) -> None:
        self._lock = lock
        self._on_digest: Any = None
        self._on_log: Any = None

    # --- meters

    def meter_read(self, meter: int, index: int) -> MeterConfig | None:
        """The configuration of a meter; None: unconfigured, every packet is green."""
        config = abi.Meter()
        with self._lock.held() as (api, handle):
            _check(api.meter_read(handle, meter, index, config))
        return _shown(config)

    def meter_write(self, meter: int, first: int, count: int, config: MeterConfig | None) -> None:
        """Configure indices first to first + count - 1; None makes them unconfigured."""
        given = _meter(config)
        with self._lock.held() as (api, handle):
            for index in range(first, first + count):
                _check(api.meter_write(handle, meter, index, given))

    def direct_meter_read(self, table: int, match: Sequence[MatchTuple], priority: int) -> MeterConfig | None:
        """The meter of a table entry."""
        config = abi.Meter()
        with self._lock.held() as (api, handle):
            _check(api.direct_meter_read(handle, table, key_of(match), priority, config))
        return _shown(config)

    def direct_meter_write(
        self, table: int, match: Sequence[MatchTuple], priority: int, config: MeterConfig | None
    ) -> None:
        """Configure the meter of a table entry."""
        with self._lock.held() as (api, handle):
            _check(api.direct_meter_write(handle, table, key_of(match), priority, _meter(config)))

    # --- clone sessions and value sets

    def clone_set(self, session: int, replicas: Sequence[tuple[int, int]], max_length: int) -> None:
        """Set the (port, rid) of each replica; no replicas delete the session. max_length 0: packets are not cut."""
        array = (abi.Replica * max(1, len(replicas)))(*(abi.Replica(*r) for r in replicas))
        with self._lock.held() as (api, handle):
            _check(api.clone_set(handle, session, array, len(replicas), max_length))

    def value_set_write(self, value_set: int, rows: Sequence[Sequence[MatchTuple]]) -> None:
        """Replace the members; each has one match for each field."""
        fields = [match for row in rows for match in row]
        with self._lock.held() as (api, handle):
            _check(api.value_set_write(handle, value_set, key_of(fields), len(rows)))

    # --- action profiles

    def member_insert(self, profile: int, member: int, action: int, params: bytes) -> None:
        """Insert a member. EEXIST if it exists."""
        with self._lock.held() as (api, handle):
            _check(api.member_insert(handle, profile, member, action, params, len(params)))

    def member_modify(self, profile: int, member: int, action: int, params: bytes) -> None:
        """Modify a member. ENOENT if it does not exist."""
        with self._lock.held() as (api, handle):
            _check(api.member_modify(handle, profile, member, action, params, len(params)))

    def member_delete(self, profile: int, member: int) -> None:
        """Delete a member. EBUSY while an entry or a group refers to it."""
        with self._lock.held() as (api, handle):
            _check(api.member_delete(handle, profile, member))

    def group_set(self, profile: int, group: int, members: Sequence[int]) -> None:
        """Make or replace a group; `members` contains a member of weight n n times."""
        array = (ctypes.c_uint32 * max(1, len(members)))(*members)
        with self._lock.held() as (api, handle):
            _check(api.group_set(handle, profile, group, array, len(members)))

    def group_delete(self, profile: int, group: int) -> None:
        """Delete a group. EBUSY while an entry refers to it."""
        with self._lock.held() as (api, handle):
            _check(api.group_delete(handle, profile, group))

    def insert_indirect(
        self, table: int, match: Sequence[MatchTuple], priority: int, kind: int, identity: int
    ) -> None:
        """Insert an entry that refers to a member or a group (kind: abi.MEMBER or abi.GROUP)."""
        with self._lock.held() as (api, handle):
            _check(api.table_insert_indirect(handle, table, key_of(match), priority, kind, identity))

    def modify_indirect(
        self, table: int, match: Sequence[MatchTuple], priority: int, kind: int, identity: int
    ) -> None:
        """Make an existing entry refer to a member or a group."""
        with self._lock.held() as (api, handle):
            _check(api.table_modify_indirect(handle, table, key_of(match), priority, kind, identity))

    def set_default_indirect(self, table: int, kind: int, identity: int) -> None:
        """Make the default entry refer to a member or a group."""
        with self._lock.held() as (api, handle):
            _check(api.table_set_default_indirect(handle, table, kind, identity))

    # --- digests and messages

    def on_digest(self, write: Callable[[int, bytes], None] | None) -> None:
        """Pass the id and the concatenated fields of each digest to `write`, while a packet is processed and the
        program's lock is held. None: digests are discarded."""

        def call(_: int, digest: int, data: Any, length: int) -> None:
            assert write is not None
            with self._lock.callback():
                write(digest, ctypes.string_at(data, length))

        function = abi.DigestFunction(call) if write is not None else abi.DigestFunction()
        with self._lock.held() as (api, handle):
            api.on_digest(handle, function, None)
            self._on_digest = function

    def on_log(self, write: Callable[[str], None] | None) -> None:
        """Pass the messages of log_msg() and of failed assertions to `write`, in the same way."""

        def call(_: int, message: bytes) -> None:
            assert write is not None
            with self._lock.callback():
                write(message.decode(errors="replace"))

        function = abi.LogFunction(call) if write is not None else abi.LogFunction()
        with self._lock.held() as (api, handle):
            api.on_log(handle, function, None)
            self._on_log = function


def key_of(match: Sequence[MatchTuple]) -> "ctypes.Array[abi.Match]":
    """An array with the isw_match of each field."""
    array = (abi.Match * max(1, len(match)))()
    for place, (value, other, prefix) in zip(array, match, strict=False):
        place.value, place.mask_or_high, place.prefix_length = value, other, prefix
    return array


def _meter(config: MeterConfig | None) -> abi.Meter:
    return abi.Meter(*config, 1) if config is not None else abi.Meter()


def _shown(config: abi.Meter) -> MeterConfig | None:
    return MeterConfig(config.cir, config.cburst, config.pir, config.pburst) if config.is_set else None


def _check(result: int) -> None:
    if result != 0:
        raise OSError(-result, os.strerror(-result))
