# SPDX-License-Identifier: Apache-2.0
"""runtime/program.h for ctypes."""

import ctypes as c
from pathlib import Path

from inagg_switch.errors import SwitchError

ABI_VERSION = 11
MAX_THREADS = 64  # of a program

EmitFunction = c.CFUNCTYPE(
    None, c.c_void_p, c.c_uint32, c.POINTER(c.c_uint8), *([c.c_size_t] * 3), c.c_int, c.c_uint32
)
QueueFunction = c.CFUNCTYPE(c.c_uint32, c.c_void_p, c.c_uint32)


class Match(c.Structure):
    """isw_match. The caller keeps the bytes alive to which the pointers refer."""

    _fields_ = (("value", c.c_char_p), ("mask_or_high", c.c_char_p), ("prefix_length", c.c_uint32))


class Replica(c.Structure):
    """isw_replica"""

    _fields_ = (("port", c.c_uint32), ("rid", c.c_uint32))


class Meter(c.Structure):
    """isw_meter"""

    _fields_ = (
        ("cir", c.c_uint64),
        ("cburst", c.c_uint64),
        ("pir", c.c_uint64),
        ("pburst", c.c_uint64),
        ("is_set", c.c_int),
    )


ALL = (1 << 31) - 1  # a number of entries, more than a table can have

ACTION, MEMBER, GROUP = 0, 1, 2  # isw_entry.indirect_kind


class ShownMatch(c.Structure):
    """isw_match from the program: bytes by address, because they may contain zeros."""

    _fields_ = (("value", c.c_void_p), ("mask_or_high", c.c_void_p), ("prefix_length", c.c_uint32))


class Entry(c.Structure):
    """isw_entry"""

    _fields_ = (
        ("match", c.POINTER(ShownMatch)),
        ("match_count", c.c_size_t),
        ("priority", c.c_int32),
        ("action", c.c_uint32),
        ("params", c.c_void_p),
        ("params_length", c.c_size_t),
        ("packets", c.c_uint64),
        ("bytes", c.c_uint64),
        ("is_const", c.c_int),
        ("indirect_kind", c.c_uint32),
        ("indirect_id", c.c_uint32),
        ("last_hit_us", c.c_uint64),
        ("meter", Meter),
    )


class ProfileEntry(c.Structure):
    """isw_profile_entry"""

    _fields_ = (
        ("id", c.c_uint32),
        ("action", c.c_uint32),
        ("params", c.c_void_p),
        ("params_length", c.c_size_t),
        ("members", c.POINTER(c.c_uint32)),
        ("member_count", c.c_size_t),
    )


TextFunction = c.CFUNCTYPE(None, c.c_void_p, c.POINTER(c.c_char), c.c_size_t)
EntryFunction = c.CFUNCTYPE(None, c.c_void_p, c.POINTER(Entry))
ProfileFunction = c.CFUNCTYPE(None, c.c_void_p, c.POINTER(ProfileEntry))
DigestFunction = c.CFUNCTYPE(None, c.c_void_p, c.c_uint32, c.POINTER(c.c_uint8), c.c_size_t)
LogFunction = c.CFUNCTYPE(None, c.c_void_p, c.c_char_p)

_VOID = c.c_void_p
_ID = c.c_uint32
_COUNT = c.POINTER(c.c_uint64)
_INSERT = c.CFUNCTYPE(c.c_int, _VOID, _ID, c.POINTER(Match), c.c_int32, _ID, c.c_char_p, c.c_size_t)
_MEMBER = c.CFUNCTYPE(c.c_int, _VOID, _ID, _ID, _ID, c.c_char_p, c.c_size_t)
_PROFILE_ITEM = c.CFUNCTYPE(c.c_int, _VOID, _ID, _ID)
_PROFILE_VISIT = c.CFUNCTYPE(c.c_int, _VOID, _ID, ProfileFunction, _VOID)
_INDIRECT = c.CFUNCTYPE(c.c_int, _VOID, _ID, c.POINTER(Match), c.c_int32, _ID, _ID)
_DIRECT = (c.c_int, _VOID, _ID, c.POINTER(Match), c.c_int32)


LateFunction = c.CFUNCTYPE(None, _VOID)


class Late(c.Structure):
    """isw_late"""

    _fields_ = (("offset", c.c_size_t), ("fill", LateFunction), ("ctx", _VOID))


class Api(c.Structure):
    """isw_api"""

    _fields_ = (
        ("abi_version", c.c_uint32),
        ("one_thread", c.c_char_p),
        ("steering", c.c_void_p),
        ("create", c.CFUNCTYPE(_VOID, c.c_uint64, c.c_uint32, TextFunction, _VOID)),
        ("destroy", c.CFUNCTYPE(None, _VOID)),
        ("lock", c.CFUNCTYPE(None, _VOID)),
        ("unlock", c.CFUNCTYPE(None, _VOID)),
        ("lock_thread", c.CFUNCTYPE(None, _VOID, c.c_uint32)),
        ("unlock_thread", c.CFUNCTYPE(None, _VOID, c.c_uint32)),
        (
            "process",
            c.CFUNCTYPE(
                None,
                _VOID,
                c.c_uint32,
                c.c_uint32,
                c.c_char_p,
                c.c_size_t,
                c.c_uint64,
                c.POINTER(Late),
                EmitFunction,
                QueueFunction,
                _VOID,
            ),
        ),
        ("table_insert", _INSERT),
        ("table_modify", _INSERT),
        ("table_delete", c.CFUNCTYPE(*_DIRECT)),
        ("table_set_default", c.CFUNCTYPE(c.c_int, _VOID, _ID, _ID, c.c_char_p, c.c_size_t)),
        ("table_entries", c.CFUNCTYPE(c.c_int, _VOID, _ID, c.c_size_t, c.c_size_t, EntryFunction, _VOID)),
        ("table_entry", c.CFUNCTYPE(*_DIRECT, EntryFunction, _VOID)),
        ("table_default", c.CFUNCTYPE(c.c_int, _VOID, _ID, EntryFunction, _VOID)),
        ("multicast_set", c.CFUNCTYPE(c.c_int, _VOID, _ID, c.POINTER(Replica), c.c_size_t)),
        ("counter_read", c.CFUNCTYPE(c.c_int, _VOID, _ID, c.c_uint64, _COUNT, _COUNT)),
        ("counter_write", c.CFUNCTYPE(c.c_int, _VOID, _ID, c.c_uint64, c.c_uint64, c.c_uint64)),
        ("direct_counter_read", c.CFUNCTYPE(*_DIRECT, _COUNT, _COUNT)),
        ("direct_counter_write", c.CFUNCTYPE(*_DIRECT, c.c_uint64, c.c_uint64)),
        ("register_read", c.CFUNCTYPE(c.c_int, _VOID, _ID, c.c_uint64, c.c_char_p)),
        ("register_write", c.CFUNCTYPE(c.c_int, _VOID, _ID, c.c_uint64, c.c_char_p)),
        ("trace", c.CFUNCTYPE(c.c_int, _VOID, TextFunction, _VOID)),
        ("meter_read", c.CFUNCTYPE(c.c_int, _VOID, _ID, c.c_uint64, c.POINTER(Meter))),
        ("meter_write", c.CFUNCTYPE(c.c_int, _VOID, _ID, c.c_uint64, c.POINTER(Meter))),
        ("direct_meter_read", c.CFUNCTYPE(*_DIRECT, c.POINTER(Meter))),
        ("direct_meter_write", c.CFUNCTYPE(*_DIRECT, c.POINTER(Meter))),
        ("clone_set", c.CFUNCTYPE(c.c_int, _VOID, _ID, c.POINTER(Replica), c.c_size_t, c.c_uint32)),
        ("on_digest", c.CFUNCTYPE(c.c_int, _VOID, DigestFunction, _VOID)),
        ("on_log", c.CFUNCTYPE(c.c_int, _VOID, LogFunction, _VOID)),
        ("member_insert", _MEMBER),
        ("member_modify", _MEMBER),
        ("member_delete", _PROFILE_ITEM),
        ("group_set", c.CFUNCTYPE(c.c_int, _VOID, _ID, _ID, c.POINTER(c.c_uint32), c.c_size_t)),
        ("group_delete", _PROFILE_ITEM),
        ("profile_members", _PROFILE_VISIT),
        ("profile_groups", _PROFILE_VISIT),
        ("table_insert_indirect", _INDIRECT),
        ("table_modify_indirect", _INDIRECT),
        ("table_set_default_indirect", c.CFUNCTYPE(c.c_int, _VOID, _ID, _ID, _ID)),
        ("value_set_write", c.CFUNCTYPE(c.c_int, _VOID, _ID, c.POINTER(Match), c.c_size_t)),
        ("priority_queues", c.CFUNCTYPE(None, _VOID, c.c_uint32)),
    )


def check_threads(threads: int) -> None:
    """Raise SwitchError if a switch cannot have so many threads: a power of two, so that a slot is always one's."""
    if not 1 <= threads <= MAX_THREADS or threads & threads - 1:
        raise SwitchError(f"{threads} threads: a switch has 1, 2, 4, ... {MAX_THREADS}")


def load(library: Path) -> Api:
    """Load a compiled program and return its function table. The library stays loaded until the process ends."""
    loaded = c.CDLL(str(library))
    loaded.isw_program_v1.restype = c.POINTER(Api)
    api: Api = loaded.isw_program_v1().contents
    if api.abi_version != ABI_VERSION:
        raise RuntimeError(f"{library} has ABI version {api.abi_version}, not {ABI_VERSION}")
    return api
