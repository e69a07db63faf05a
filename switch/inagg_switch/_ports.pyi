# SPDX-License-Identifier: Apache-2.0
"""Native packet ports and control-plane calls (native/ports).

A refused call raises OSError with the program's errno.
"""

from collections.abc import Sequence

# (value, mask or high, prefix length), big-endian, (width + 7) // 8 bytes; value None: don't care.
MatchTuple = tuple[bytes | None, bytes | None, int]
# cir, cburst, pir, pburst
MeterTuple = tuple[int, int, int, int]
# match, priority, action id, concatenated parameters, packets, bytes, is const, indirect kind and id, last hit (us),
# meter
EntryTuple = tuple[list[MatchTuple], int, int, bytes, int, int, bool, int, int, int, MeterTuple | None]

class PacketLoop:
    """One thread that moves frames between interfaces and a program. Opens every port at once.

    thread: its number among those of a switch. first: the loop of thread 0, whose events, packets to the CPU port,
    capture files and time this one shares; stop it last.
    """

    def __init__(
        self,
        ports: Sequence[tuple[int, str]],
        *,
        receive_buffer_bytes: int,
        send_buffer_bytes: int,
        queue_frames: int,
        queue_bytes: int,
        offloads: bool,
        fan_out: bool,
        cpu_port: int,
        priority_queues: int,
        captures: Sequence[str],
        thread: int,
        first: PacketLoop | None,
    ) -> None: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def set_program(self, api_address: int, handle: int, threads: int) -> None:
        """Replace the program, which is made for `threads` threads; after the return the previous one is unused, and
        the loop receives the frames of its thread. (0, 0, 1): no program, frames are dropped, and thread 0 receives
        them all. Raises OSError."""

    def statistics(
        self,
    ) -> list[tuple[int, str, bool, tuple[int, int, int, int], dict[str, int], dict[str, int]]]:
        """For every port: id, interface, is up, (rx packets, rx bytes, tx packets, tx bytes), drops by reason, and
        impaired packets by direction and effect, such as rx_lost."""

    def impair(self, port: int, received: bool, spec: tuple[float, ...] | None) -> None:
        """Impair the packets that a port receives, or those that it sends; None: no longer. Takes effect within the
        next iteration of the loop. spec: (loss, duplicate, reorder, corrupt, delay_us, jitter_us, seed)."""

    def has_offloads(self) -> bool:
        """Whether frames with offloads are exchanged: they were requested, and the kernel supports them."""

    def unknown_port_drops(self) -> int: ...
    def to_cpu_drops(self) -> int:
        """Dropped frames to the CPU port: 1000 may wait for next_to_cpu()."""

    def next_fan_out(self) -> tuple[int, list[str]] | None:
        """Wait for a fan-out device to make: (its id, the interfaces that it clones to), or to remove: (its id, []).
        None after the loop has stopped."""

    def fan_out_made(self, id: int, fd: int) -> None:
        """The device is made, and `fd` stays open until it is to be removed; -1: it could not be made this time."""

    def refuse_fan_outs(self) -> None:
        """No device can be made: ask for none."""

    def fan_out_statistics(self) -> tuple[int, int]:
        """Devices now, and packets that have left once for several ports."""

    def next_event(self) -> tuple[bool, int, str] | None:
        """Wait for an event: (is a warning, port id, text). None after the loop has stopped."""

    def next_to_cpu(self) -> bytes | None:
        """Wait for the next frame that the program sends to the CPU port. None after the loop has stopped."""

    def inject(self, port: int, frame: bytes) -> bool:
        """Run a frame through the program, on the loop's thread, as if received on `port`. False: dropped, because 1000
        wait already."""

    def limit_queues(
        self,
        port: int | None,
        priority: int | None,
        *,
        packets_per_second: int | None = None,
        depth: int | None = None,
    ) -> None:
        """Change a limit of the queue of a port and a priority; None: of all. 0: no limit."""

    def now_us(self) -> int:
        """The program's time."""

class ProgramControl:
    """The control functions of a program (runtime/program.h), by P4Info id. A refused call raises OSError."""

    def __init__(self, api_address: int, handle: int) -> None: ...
    def table_insert(
        self, table: int, match: Sequence[MatchTuple], priority: int, action: int, params: bytes, /
    ) -> None: ...
    def table_modify(
        self, table: int, match: Sequence[MatchTuple], priority: int, action: int, params: bytes, /
    ) -> None: ...
    def table_delete(self, table: int, match: Sequence[MatchTuple], priority: int, /) -> None: ...
    def table_set_default(self, table: int, action: int, params: bytes, /) -> None:
        """Set the default action; action 0 restores the one that the program declares."""

    def table_entries(self, table: int, field_bytes: Sequence[int], /) -> list[EntryTuple]: ...
    def table_count(self, table: int, /) -> int: ...
    def table_entry(self, table: int, match: Sequence[MatchTuple], priority: int, /) -> EntryTuple: ...
    def table_default(self, table: int, /) -> list[EntryTuple]: ...
    def multicast_set(self, group: int, replicas: Sequence[tuple[int, int]], /) -> None:
        """Set the (port, rid) of each replica; no replicas delete the group."""

    def counter_response(self, counter: int, first: int, count: int, /) -> bytes:
        """A ReadResponse with an entity for each cell, as the two methods below."""

    def meter_response(self, meter: int, first: int, count: int, /) -> bytes: ...
    def register_response(self, register: int, first: int, count: int, value_bytes: int, /) -> bytes: ...
    def counter_write(
        self, counter: int, first: int, count: int, packets: int, byte_count: int, /
    ) -> None: ...
    def direct_counter_read(
        self, table: int, match: Sequence[MatchTuple], priority: int, /
    ) -> tuple[int, int]: ...
    def direct_counter_write(
        self, table: int, match: Sequence[MatchTuple], priority: int, packets: int, byte_count: int, /
    ) -> None: ...
    def meter_write(self, meter: int, first: int, count: int, config: MeterTuple | None, /) -> None:
        """Configure a meter; None: unconfigured, every packet is green."""

    def register_write(self, register: int, first: int, count: int, value: bytes, /) -> None: ...

# id, bits in the program, bits that a controller may use (0: none), number of the match kind in p4.v1.FieldMatch
FieldShape = tuple[int, int, int, int]
# id, whether entries may have it, parameters
ActionShape = tuple[int, bool, Sequence[FieldShape]]
# id, is writable, needs a priority, has a direct counter, match fields, actions
TableShape = tuple[int, bool, bool, bool, Sequence[FieldShape], Sequence[ActionShape]]

class TableUpdates:
    """The updates of an encoded WriteRequest. TableEntries can write those that are plain, unless it refuses them."""

    def __init__(self, request: bytes, most: int, /) -> None: ...
    @property
    def is_sound(self) -> bool:
        """False for a message that only protobuf can judge, and if has_too_many."""

    @property
    def has_too_many(self) -> bool:
        """Whether there are more than `most` updates."""

    @property
    def rest(self) -> bytes:
        """The request without its updates."""

    def __len__(self) -> int: ...
    def is_plain(self, place: int, /) -> bool: ...
    def message(self, place: int, /) -> bytes:
        """An encoded Update."""

class TableEntries:
    """Copies plain table entries between P4Runtime messages and a program, which is locked for a few entries at a time.

    Nothing else may write entries during a call.
    """

    def __init__(self, api_address: int, handle: int, tables: Sequence[TableShape], /) -> None: ...
    def write(self, updates: TableUpdates, first: int, only_inserts: bool, /) -> int:
        """Write the updates from `first` on; return the place of the first one that is not plain or is refused."""

    def take_back(self, updates: TableUpdates, first: int, end: int, /) -> int:
        """Delete the entries that these INSERTs have written, last first; return the number of deleted ones."""

    def read(self, table: int, with_counters: bool, /) -> list[bytes]:
        """ReadResponses with all of a table's entries."""

def drop_capabilities() -> None:
    """Give up what a switch does not need, on this thread. See `inagg_switch.ports.drop_capabilities`."""

def run_bench(
    api_address: int,
    handle: int,
    threads: int,
    packets: Sequence[tuple[int, bytes]],
    first_pass: int,
    passes: int,
    counter_offset: int | None,
    run: int,
    /,
) -> tuple[float, int]:
    """Run (port, frame) pairs in order, `passes` times, on all threads of the program, each of which has its share of
    the frames; return seconds and the number of packets sent.

    Before packet i of pass p, numbered from `first_pass`, its 4 bytes at `counter_offset` are set to p * run + i % run.
    """
