# SPDX-License-Identifier: Apache-2.0
"""Meters, clone sessions, action profiles, value sets and digests of a running program, by P4Info id.

These are the calls of runtime/program.h with Python's types. A refusal is an OSError with the program's errno. Calls
are short and rare, so they take the program's lock from Python; what is called often is in ports/control/control.hpp.
"""

import ctypes
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from inagg_switch.program import abi
from inagg_switch.program.lock import ProgramLock


class MeterConfig(NamedTuple):
    """Two rates and their bursts (RFC 2698): packets or bytes, a second for the rates."""

    cir: int
    cburst: int
    pir: int
    pburst: int


# (value, mask or high, prefix length), as in _ports.pyi.
MatchTuple = tuple[bytes | None, bytes | None, int]


class Externs:
    """Safe to use from several threads, as long as the program lives."""

    def __init__(self, lock: ProgramLock) -> None:
        self._lock = lock
        self._on_digest: Any = None
        self._on_log: Any = None

    # --- meters

    def meter_read(self, meter: int, index: int) -> MeterConfig | None:
        """None: not configured, every packet is green."""
        config = abi.Meter()
        with self._lock.held() as (api, handle):
            _check(api.meter_read(handle, meter, index, config))
        return _shown(config)

    def meter_write(self, meter: int, first: int, count: int, config: MeterConfig | None) -> None:
        """Configures indices first to first + count - 1, or puts them back to unconfigured."""
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
        """Configures the meter of a table entry."""
        with self._lock.held() as (api, handle):
            _check(api.direct_meter_write(handle, table, key_of(match), priority, _meter(config)))

    # --- clone sessions and value sets

    def clone_set(self, session: int, replicas: Sequence[tuple[int, int]], max_length: int) -> None:
        """(port, rid) of each replica; none of them deletes the session. `max_length` 0: whole packets."""
        array = (abi.Replica * max(1, len(replicas)))(*(abi.Replica(*r) for r in replicas))
        with self._lock.held() as (api, handle):
            _check(api.clone_set(handle, session, array, len(replicas), max_length))

    def value_set_write(self, value_set: int, rows: Sequence[Sequence[MatchTuple]]) -> None:
        """Replaces the members; one match a field in each."""
        fields = [match for row in rows for match in row]
        with self._lock.held() as (api, handle):
            _check(api.value_set_write(handle, value_set, key_of(fields), len(rows)))

    # --- action profiles

    def member_insert(self, profile: int, member: int, action: int, params: bytes) -> None:
        """EEXIST when it is there."""
        with self._lock.held() as (api, handle):
            _check(api.member_insert(handle, profile, member, action, params, len(params)))

    def member_modify(self, profile: int, member: int, action: int, params: bytes) -> None:
        """ENOENT when it is not there."""
        with self._lock.held() as (api, handle):
            _check(api.member_modify(handle, profile, member, action, params, len(params)))

    def member_delete(self, profile: int, member: int) -> None:
        """EBUSY while an entry or a group refers to it."""
        with self._lock.held() as (api, handle):
            _check(api.member_delete(handle, profile, member))

    def group_set(self, profile: int, group: int, members: Sequence[int]) -> None:
        """Makes or replaces a group; a member of weight n stands in `members` n times."""
        array = (ctypes.c_uint32 * max(1, len(members)))(*members)
        with self._lock.held() as (api, handle):
            _check(api.group_set(handle, profile, group, array, len(members)))

    def group_delete(self, profile: int, group: int) -> None:
        """EBUSY while an entry refers to it."""
        with self._lock.held() as (api, handle):
            _check(api.group_delete(handle, profile, group))

    def insert_indirect(
        self, table: int, match: Sequence[MatchTuple], priority: int, kind: int, identity: int
    ) -> None:
        """Inserts an entry that refers to a member or a group (`kind`: abi.MEMBER or abi.GROUP)."""
        with self._lock.held() as (api, handle):
            _check(api.table_insert_indirect(handle, table, key_of(match), priority, kind, identity))

    def modify_indirect(
        self, table: int, match: Sequence[MatchTuple], priority: int, kind: int, identity: int
    ) -> None:
        """The same for an entry that is there."""
        with self._lock.held() as (api, handle):
            _check(api.table_modify_indirect(handle, table, key_of(match), priority, kind, identity))

    def set_default_indirect(self, table: int, kind: int, identity: int) -> None:
        """The default entry refers to a member or a group from now on."""
        with self._lock.held() as (api, handle):
            _check(api.table_set_default_indirect(handle, table, kind, identity))

    # --- what the program has to say

    def on_digest(self, write: Callable[[int, bytes], None] | None) -> None:
        """Gives `write` the id and data of each digest (fields end to end) while a packet is processed, with the
        program's lock held. None: digests are thrown away."""

        def call(_: int, digest: int, data: Any, length: int) -> None:
            assert write is not None
            with self._lock.callback():
                write(digest, ctypes.string_at(data, length))

        function = abi.DigestFunction(call) if write is not None else abi.DigestFunction()
        with self._lock.held() as (api, handle):
            api.on_digest(handle, function, None)
            self._on_digest = function

    def on_log(self, write: Callable[[str], None] | None) -> None:
        """Gives `write` the messages of log_msg() and of failed assertions, likewise."""

        def call(_: int, message: bytes) -> None:
            assert write is not None
            with self._lock.callback():
                write(message.decode(errors="replace"))

        function = abi.LogFunction(call) if write is not None else abi.LogFunction()
        with self._lock.held() as (api, handle):
            api.on_log(handle, function, None)
            self._on_log = function


def key_of(match: Sequence[MatchTuple]) -> "ctypes.Array[abi.Match]":
    """isw_match of each field."""
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
