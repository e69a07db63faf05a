# SPDX-License-Identifier: Apache-2.0
"""The C++ core: wire format, numerics, the sans-IO engine, and the UDP transport (docs/protocol.md).

Times are in seconds. Invalid arguments raise ValueError (TypeError for a wrong type) and change nothing. Later failures
raise EngineError.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, Protocol, TypeAlias, TypedDict, final, overload

import numpy as np
from numpy.typing import NDArray

ErrorCode: TypeAlias = Literal["checksum", "kind_mismatch", "give_up", "silent", "failed", "closed"]
LaneBits: TypeAlias = Literal[8, 16, 32]

class Array(Protocol):
    """A contiguous, writable, one-dimensional array in CPU memory: numpy, or a torch tensor (detached).

    Of float32, bfloat16 or float16. 16-bit floats are summed as float32, and each sum is rounded once more.
    """

    def __dlpack__(self, *, stream: Any = ...) -> Any: ...
    def __dlpack_device__(self) -> tuple[Any, int]: ...

# Every constant of p4/include/constants.p4 by its name there (INAGG_PORT, KIND_DATA, WORD_BYTES...), and the core's
# FLAG_SPECIAL and EXPONENT_BIAS.
CONSTANTS: Final[dict[str, int]]

class EngineError(RuntimeError):
    """The group has failed: every unfinished and every later collective fails with this error.

    code        "checksum"       a chunk's result failed its checksum, or had an invalid exponent or flags, also when it
                                 was sent again
                "kind_mismatch"  a result's kind is not our contribution's: the ranks disagree about the collective
                "give_up"        no result was received for the give-up time
                "silent"         a root or server that has answered before left queries unanswered for silent_s; not
                                 with keeps_results
                "failed"         fail() was called, or the socket failed; the message has the reason
                "closed"         close() was called
    collective  ticket of the affected collective; None if none was unfinished
    chunk       the affected chunk (for "give_up", "failed", "closed": the oldest outstanding one; for "silent": the
                oldest one of that root or server); None without one
    """

    code: ErrorCode
    message: str
    job: int
    rank: int
    collective: int | None
    chunk: int | None

@final
class JobShape:
    """What all ends of a job agree on: the engines of its ranks, and the servers that sum for it.

    first_chunk: the first of the chunk fields on this way (docs/protocol.md, 6.4).

    Raises ValueError for a number beyond its field on the wire. Whoever takes a JobShape checks the rest.
    """

    def __init__(
        self, *, number: int, epoch: int, slots: int, words: int, workers: int, first_chunk: int = 0
    ) -> None: ...

@final
class RetransmissionPolicy:
    """When an engine asks for a result that does not come, and when it gives up, in seconds (docs/protocol.md, 6.1)."""

    def __init__(
        self,
        *,
        rto_initial_s: float = 0.1,
        rto_min_s: float = 0.001,
        rto_max_s: float = 1.0,
        give_up_s: float = 120.0,
        silent_s: float = math.inf,
    ) -> None: ...

@final
class Route:
    """Where a worker's contributions go: to the aggregator of a job on switches, or to all servers, or both of a job on
    shared slots. Runs of chunks are of one server, or of one of the `roots` of a tree (docs/protocol.md, 5.5). threads:
    of the switches, a power of two; runs of chunks of different threads overtake each other (6.1)."""

    def __init__(
        self,
        *,
        aggregator: tuple[str, int] | None = None,
        servers: Sequence[tuple[str, int]] = (),
        roots: int = 1,
        threads: int = 1,
    ) -> None: ...

@final
class Sockets:
    """A worker's UDP sockets.

    The first is either bound by the transport to `local` (ip, port; port 0 selects one) or given as `socket_fd`, the
    descriptor of a bound socket, so that a worker can register its port before it knows its epoch. `results_fd` is the
    descriptor of a second socket, bound to the job's multicast address. `more`: of each further packet thread these two
    descriptors. All first sockets have the same address and SO_REUSEPORT; the kernel gives each the results of some
    chunks.
    """

    def __init__(
        self,
        *,
        local: tuple[str, int] | None = None,
        socket_fd: int | None = None,
        results_fd: int | None = None,
        more: Sequence[tuple[int, int | None]] = (),
    ) -> None: ...

class EngineStats(TypedDict):
    """Counts since the start. Bytes are UDP payload: the inagg header and the words."""

    packets_sent: int  # retransmissions and queries included
    bytes_sent: int
    packets_received: int  # correct results that were awaited
    bytes_received: int
    retransmits: int  # contributions that the switch has told to send again
    duplicates_received: int  # results of chunks that were not outstanding, and late answers
    discarded: int  # datagrams with a wrong header, length, job or epoch
    corrupt: int  # results of outstanding chunks that failed a check and were requested again
    chunks_completed: int
    collectives_completed: int
    special_blocks: int  # blocks with a NaN, an infinity or an outlier on some rank
    wide_blocks: int  # those with an outlier
    queries: int  # for results that did not come
    probes: int  # those after a silence
    in_flight: int  # chunks outstanding now
    window: int  # chunks that may be outstanding
    congested: int  # results that met a queue, or whose contributions did, as switches have marked
    window_limit: int  # the largest window: the slots granted, at most what the receive buffer holds
    least_rtt_s: float  # of the last seconds; 0 before the first RTT
    waited_s: float  # total time of waiting for other ranks to begin a collective
    longest_wait_s: float  # of these times, for a collective with a context
    longest_wait_context: int  # of that collective
    silent_s: float  # silence before probes, in collectives that all ranks had begun
    silent_chunk: int | None  # of a root or server that has left queries unanswered for the policy's silent_s
    rtt_samples: int
    srtt_s: float  # 0.0 before the first sample
    rttvar_s: float
    rto_s: float

class TransportStats(EngineStats):
    send_calls: int
    receive_calls: int
    messages_sent: int  # UDP_SEGMENT; each has packets of one size, one or several
    messages_received: int  # UDP_GRO
    send_refusals: int  # sends that the kernel refused (buffer full) and that were repeated
    network_errors: int  # ICMP errors and unreachable routes; retransmission repairs the losses
    multicast_received: int  # datagrams at the job's multicast address
    unicast_in_a_row: int  # awaited results at this worker's own address since the last of those
    segmentation: bool  # several datagrams go to the kernel in one message (UDP_SEGMENT)
    packet_threads: int
    receive_buffer_bytes: int  # as granted by the kernel
    receive_buffer_wanted_bytes: int  # needed for a full window of results
    # Time with a collective in progress in which the thread only waited
    device_s: float  # for a device to scan or pack
    beginning_s: float  # until all ranks were known to have begun the oldest collective
    window_s: float  # for the window to admit what could be sent
    answers_s: float  # for results
    # The highest rate of results over a tenth of a second, in bytes of Ethernet frames per second
    peak_rate: float
    processor_s: float  # time that the packet threads ran, added up
    processor_wait_s: float  # time that they waited for a processor

@final
class Staging:
    """Host memory between a device with `elements` floats and the engine, for one collective. Submit it once.

    Each of the K blocks has a datagram (with its lanes, later those of its sum), an exponent, an agreed exponent and a
    checksum. All are in `memory`: 4-byte aligned, at least bytes_needed() long, page-locked if the device prefers that;
    None allocates it. The Staging keeps the memory alive, and the Transport the Staging. The memory may be used for
    another Staging when the collective is done or the group has failed.

    A device scans all blocks: it writes exponents, then calls scanned(). It packs blocks in order, as progress()
    reports their agreed exponents: it writes lanes and checksums, then calls packed(). It unpacks blocks in order, as
    progress() reports their sums. The engine reads nothing before scanned() and packed() are called.
    """

    def __init__(
        self,
        elements: int,
        *,
        lane_bits: LaneBits,
        workers: int,
        words: int,
        stochastic: int | None = None,
        memory: NDArray[np.uint8] | None = None,
    ) -> None: ...
    @staticmethod
    def bytes_needed(elements: int, *, lane_bits: LaneBits, words: int) -> int: ...
    @property
    def elements(self) -> int: ...
    @property
    def blocks(self) -> int:
        """K."""

    @property
    def block_elements(self) -> int:
        """L. A short last block is padded with lanes of zeros to L (protocol 3.1)."""

    @property
    def stride(self) -> int:
        """Size of a datagram in bytes, and the distance between two datagrams."""

    @property
    def offset(self) -> int:
        """Bytes from a datagram's start to its lanes. The engine writes the bytes before them."""

    @property
    def datagrams(self) -> NDArray[np.uint8]:
        """[K, stride]: this rank's lanes until packed(); then owned by the engine; finally the lanes of the sum."""

    @property
    def exponents(self) -> NDArray[np.uint16]:
        """[K]: wire codes of this rank's blocks (protocol 3.2), with 0x8000 for elements that travel apart."""

    @property
    def agreed(self) -> NDArray[np.uint16]:
        """[K]: the maximum over the ranks, with 0x8000 if some travel apart; for blocks below `known`."""

    @property
    def limits(self) -> NDArray[np.int32]:
        """[K]: the bits of the greatest magnitude in each block's lanes, from scanned() on. Elements beyond travel
        apart, and are zero in the lanes that the device makes."""

    @property
    def checksums(self) -> NDArray[np.uint32]:
        """[K]: the sum of this rank's L lanes of each block, mod 2^32."""

@final
class Engine:
    """One worker's protocol engine, for tests: no socket, no clock. Not thread-safe.

    `member`: the rank's number among the members of the switch that it sends to; None: its rank.
    `ways`: number of roots or servers that share the job's chunks. `ways_apart`: the worker sends to each. `threads`:
    as of `Route`. `packet_threads`: of the worker; here they take turns. `home`: the way to the server in its own
    process, to which it sends past the switch.
    `outlasts_silence`: a way that is silent for the policy's `silent_s` is no failure.
    """

    def __init__(
        self,
        job: JobShape,
        *,
        rank: int,
        member: int | None = None,
        ways: int = 1,
        ways_apart: bool = False,
        threads: int = 1,
        packet_threads: int = 1,
        home: int | None = None,
        policy: RetransmissionPolicy = ...,
        outlasts_silence: bool = False,
    ) -> None: ...
    def submit(
        self,
        array: Array,
        *,
        lane_bits: LaneBits = 32,
        average: bool = False,
        stochastic: int | None = None,
        context: int = 0,
        residual: NDArray[np.float32] | None = None,
        filled: bool = True,
        now: float = 0.0,
    ) -> int:
        """Queue an in-place all-reduce and return its ticket: 1, 2, 3... Raises EngineError if the group has failed.

        stochastic: a seed, different for each rank and collective, for stochastic rounding (protocol 3.1).
        context: 32 bits, part of the fingerprint: if ranks give different ones, the collective fails (protocol 3.2).
        residual: an array of the same length that receives the residual of each element.
        filled: whether the elements are in the array; otherwise filled() says when they are, and later collectives wait
        for it.
        """

    def filled(self, ticket: int, *, now: float = 0.0) -> None:
        """Report that the array of this collective has its elements."""

    def submit_staged(
        self, staging: Staging, *, average: bool = False, context: int = 0, now: float = 0.0
    ) -> int:
        """Queue the all-reduce of a Staging and return its ticket. Other ranks may submit arrays.

        Its place in the order of collectives is fixed now: later collectives wait for its scanned(). An empty one is
        done at once and needs no further calls.
        """

    def scanned(
        self,
        staging: Staging,
        special_blocks: NDArray[np.int64],
        special_elements: NDArray[np.float32],
        *,
        now: float = 0.0,
    ) -> None:
        """Report that the exponents are written. special_blocks [m]: blocks with 0x8000, ascending; special_elements
        [m, L]: their floats (a short last block has fewer). Their `limits` are known then."""

    def packed(self, staging: Staging, blocks: int, *, now: float = 0.0) -> None:
        """Report that the lanes and checksums of the first `blocks` blocks are written, for their agreed exponents."""

    def progress(self, staging: Staging) -> tuple[int, int]:
        """(known, summed): the number of first blocks with agreed exponents, and with the lanes of their sums."""

    def special_sums(self, staging: Staging) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """After completion: the blocks [m] that were special on some rank, and their sums [m, L] (or averages)."""

    def outlier_residuals(self, staging: Staging) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """After completion: the blocks [m] with outliers on this rank, and the residuals [m, L] of these outliers; 0
        for other elements."""

    def receive(
        self, message: bytes, now: float, *, datagram_bytes: int | None = None, congested: bool = False
    ) -> None:
        """Take a message of datagrams of one size, of which the last may be shorter; None: it is one datagram.

        congested: it met a queue on its way."""

    def to_send(self, now: float, limit: int | None = None) -> list[bytes]:
        """Fire the timers that are due and return every datagram to send now, at most `limit`, as if the socket refused
        the rest of a batch."""

    def deadline(self) -> float | None:
        """The latest time of the next to_send(); None while nothing is outstanding."""

    def completed(self) -> list[int]:
        """Tickets completed since the last call, in the order of their completion."""

    # A change of way (protocol 6.4): all ranks freeze, then fill in what they lack, then go on.
    def freeze(self) -> None:
        """Send nothing and take no result until go_on()."""

    def next_chunks(self) -> list[int]:
        """By slot, the chunk that this rank completes next."""

    def kept(self, chunk: int) -> bytes:
        """The last result of the slot of `chunk`, the datagram as it was; empty before the first."""

    def fill(self, result: bytes, now: float) -> bool:
        """Take a result that another rank has kept. False if this rank does not lack it, or it is not right."""

    def go_on(
        self,
        job: JobShape,
        *,
        rank: int,
        member: int | None = None,
        ways: int = 1,
        ways_apart: bool = False,
        threads: int = 1,
        packet_threads: int = 1,
        home: int | None = None,
        policy: RetransmissionPolicy = ...,
        now: float = 0.0,
    ) -> None:
        """Send what is outstanding again, to what sums for the job now. Arguments as of the constructor; slots, words,
        workers, rank and packet threads are those of before, else this raises ValueError."""

    def fail(self, reason: str) -> None:
        """Fail the group. The first failure stays."""

    @property
    def failure(self) -> EngineError | None: ...
    @property
    def stats(self) -> EngineStats: ...

class HeldVersion(TypedDict):
    """What a version of a slot holds (protocol 5.2). words: empty if it has had none."""

    chunk: int
    members: int
    flags: int
    exponent: int
    flags_check: int
    exponent_check: int
    checksum: int
    words: bytes
    final: bool

@final
class ServedJob:
    """The sums of one job in host memory, for tests: no socket. `index`: the way of its chunks, of `servers` ways.

    members: the bits of the ranks that send to it; 0: all. rank_above: the rank as which it sends partial sums to the
    server above; None: it is the root. home: the rank that sends to it past the switch, if the job is relayed.
    """

    ABOVE: Final = -1
    """The server above, as a receiver."""

    def __init__(
        self,
        job: JobShape,
        *,
        servers: int = 1,
        index: int = 0,
        relayed: bool = False,
        members: int = 0,
        rank_above: int | None = None,
        home: int | None = None,
    ) -> None: ...
    def receive(
        self, datagram: bytes, member: int | None, congested: bool = False
    ) -> list[tuple[int | None, bytes]]:
        """Take a datagram from a member's address, or from the switch (None). Returns what leaves: to a rank, ABOVE, or
        to all (None), which goes to the switch and to the rank at home if the job is relayed."""

    def receive_from_above(self, datagram: bytes, congested: bool = False) -> list[tuple[int | None, bytes]]:
        """Take a datagram from the server above. Returns what leaves."""

    def held(self, chunk: int) -> HeldVersion | None:
        """What the version of a chunk holds; None: it has never been used. Raises ValueError if the chunk is another
        server's."""

    @property
    def memory(self) -> int:
        """Bytes, as inagg_contract.sizes.server_memory counts them."""

    @property
    def counts(self) -> dict[str, int]:
        """Packets by outcome (protocol 5.1, 5.2)."""

    @property
    def chunks(self) -> dict[str, int]:
        """Completed DATA chunks by where they were summed (protocol 5.7): ``switches``, ``both``, ``servers``."""

class ServerStats(TypedDict):
    """memory: bytes that the jobs take. unknown: datagrams that belong to none of them. send_drops: datagrams that the
    kernel would not take. jobs: packets by outcome (protocol 5.1, 5.2), of each job. chunks: as in ServedJob, of each.
    """

    memory: int
    unknown: int
    send_drops: int
    jobs: dict[int, dict[str, int]]
    chunks: dict[int, dict[str, int]]

@final
class ServedPart:
    """What a server sums of a job in one way of the chunks: `index`.

    members: rank -> the address that its packets come from, of those that send to this server. relay: the switch of a
    job on shared slots. home: the rank whose packets come past this switch. above: the rank as which this server sends
    its sums to a server above, and that server's address; None: it is the root.
    """

    def __init__(
        self,
        members: Mapping[int, tuple[str, int]],
        *,
        index: int = 0,
        relay: tuple[str, int] | None = None,
        home: int | None = None,
        above: tuple[int, tuple[str, int]] | None = None,
    ) -> None: ...

@final
class Server:
    """An aggregation server: sums for many jobs on one UDP socket, in its own thread. All methods are thread-safe.

    The socket is bound here to `local`, or given as `socket_fd`, which the server takes over: socket.detach() it.
    memory: the most bytes that jobs may take. Raises OSError if the socket cannot be made.
    """

    def __init__(
        self, *, local: tuple[str, int] | None = None, socket_fd: int | None = None, memory: int
    ) -> None: ...
    @property
    def local_address(self) -> tuple[str, int]: ...
    @property
    def failure(self) -> str | None:
        """Why its thread has ended though nobody closed the server, such as an error of its socket; None if it has not.
        Jobs get no more results then, and the methods below raise RuntimeError with this reason."""

    def serve(self, job: JobShape, parts: Sequence[ServedPart], *, servers: int = 1) -> None:
        """Admit a job's packets. parts: each of another way of the chunks, of which there are `servers`.

        The same job (and epoch) again changes nothing. An older job of that number ends. Raises ValueError, also if
        there is not enough memory; RuntimeError after close().
        """

    def drop(self, job: int, epoch: int) -> None:
        """Forget a job, if it is served."""

    def stats(self) -> ServerStats: ...
    def chunks(self, job: int, epoch: int) -> dict[str, int] | None:
        """What it has summed for a job, as in ServedJob; None if it does not serve it."""

    def close(self) -> None:
        """End the thread. Packets that come later are lost."""

@final
class RoundSlots:
    """One rank's part in rounds, without I/O, for tests in virtual time; see Rounds.

    `receive` takes a datagram of the worker's. It and `finish` return what the worker is to get.
    """

    def __init__(self, job: JobShape, next_chunks: Sequence[int]) -> None: ...
    def receive(self, datagram: bytes) -> list[bytes]: ...
    @property
    def wants_round(self) -> bool: ...
    def offer(self) -> NDArray[np.int32]: ...
    def contributions(self, agreed: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int32]]: ...
    def finish(
        self, agreed: NDArray[np.int32], peaks: NDArray[np.int64], sums: NDArray[np.int32]
    ) -> list[bytes]: ...

@final
class Rounds:
    """What sums for a Transport in rounds of all ranks, in place of a server in its process (docs/protocol.md, 5.8).

    Of each round the caller does the all-reduces: `offer` of all ranks are ORed to `agreed`, of `contributions` the
    first array is the maximum of all ranks', and the second one the sum, which wraps around. next_chunks: by slot, the
    chunk that all ranks sum next. Raises ValueError.
    """

    def __init__(self, job: JobShape, next_chunks: Sequence[int]) -> None: ...
    @property
    def local_address(self) -> tuple[str, int]:
        """The only server of a Route for it. It is no host's."""

    def wait(self) -> bool:
        """Wait until this rank is to join a round. False: it is closed."""

    def offer(self) -> NDArray[np.int32]: ...
    def contributions(self, agreed: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int32]]: ...
    def finish(
        self, agreed: NDArray[np.int32], peaks: NDArray[np.int64], sums: NDArray[np.int32]
    ) -> None: ...
    def close(self) -> None:
        """End the rounds. The worker gets nothing more."""

@final
class Transport:
    """One worker's engine on a UDP socket, run by its own thread. All methods are thread-safe.

    The transport takes the descriptors of `sockets` over: socket.detach() them. If the constructor raises, they are
    still the caller's.
    Raises OSError if the socket cannot be made or connected.
    """

    def __init__(
        self,
        job: JobShape,
        *,
        rank: int,
        member: int | None = None,
        route: Route,
        sockets: Sockets,
        own_server: Server | Rounds | None = None,
        policy: RetransmissionPolicy = ...,
        spin_s: float = 0.0,
        keeps_results: bool = False,
    ) -> None:
        """own_server: the server in this process, which is number `rank` of the job's, or Rounds; packets pass between
        the two in memory. The worker is at home there (docs/protocol.md, 5.7). spin_s: how long to poll for packets
        before sleeping, in seconds; see Options.spin_us. keeps_results: for a change of way (6.4)."""

    @property
    def local_address(self) -> tuple[str, int]: ...
    @overload
    def submit(
        self,
        array: Array,
        *,
        lane_bits: LaneBits = 32,
        average: bool = False,
        stochastic: int | None = None,
        context: int = 0,
        residual: Array | None = None,
        filled: bool = True,
    ) -> int:
        """Queue an in-place all-reduce and return its ticket (1, 2, 3...), without waiting.

        All ranks submit the same collectives in the same order. The array is kept alive until the ticket is done, and
        must not be accessed or submitted again before. Raises EngineError if the group has failed or was closed.

        filled: whether the elements are in the array; otherwise filled() says when they are, and later collectives wait
        for it. The array may be written until then.
        """

    @overload
    def submit(
        self,
        address: int,
        elements: int,
        *,
        lane_bits: LaneBits = 32,
        average: bool = False,
        stochastic: int | None = None,
        context: int = 0,
    ) -> int:
        """The same for `elements` float32 at `address` (4-byte aligned), which the caller keeps alive."""

    def filled(self, ticket: int) -> None:
        """Report that the array of this collective has its elements. Raises EngineError as submit()."""

    def submit_staged(self, staging: Staging, *, average: bool = False, context: int = 0) -> int:
        """Queue the all-reduce of a Staging and return its ticket. Other ranks may submit arrays.

        Its place in the order of collectives is fixed now: later collectives wait for its scanned(). An empty one is
        done at once and needs no further calls.
        """

    def scanned(
        self, staging: Staging, special_blocks: NDArray[np.int64], special_elements: NDArray[np.float32]
    ) -> None:
        """Report that the exponents are written. special_blocks [m]: blocks with 0x8000, ascending; special_elements
        [m, L]: their floats (a short last block has fewer). Their `limits` are known then."""

    def packed(self, staging: Staging, blocks: int) -> None:
        """Report that the lanes and checksums of the first `blocks` blocks are written, for their agreed exponents."""

    def progress(
        self, staging: Staging, known: int, summed: int, timeout_s: float | None = None
    ) -> tuple[int, int] | None:
        """Wait until more than the first `known` blocks have agreed exponents, or more than the first `summed` blocks
        have the lanes of their sums, or the collective is done; return both numbers.

        None after timeout_s; EngineError if it failed. To wait for only one of the two, pass `blocks` for the other.
        The lanes of a block that is special on some rank are not written: its sums are in special_sums().
        """

    def special_sums(self, staging: Staging) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """After completion: the blocks [m] that were special on some rank, and their sums [m, L] (or averages)."""

    def outlier_residuals(self, staging: Staging) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """After completion: the blocks [m] with outliers on this rank, and the residuals [m, L] of these outliers; 0
        for other elements."""

    def wait(self, ticket: int, timeout_s: float | None = None) -> bool:
        """Wait until the collective is done: True; False after timeout_s (None: never). EngineError if it failed."""

    def watch(self, ticket: int) -> None:
        """Let next_done() return this ticket once, even if it is done already."""

    def next_done(self, timeout_s: float | None = None) -> int | None:
        """Wait for the next watched ticket that is done, in order of completion; None after timeout_s.

        Tickets done before a failure are returned first; then it raises EngineError.
        """

    # A change of way (protocol 6.4): all ranks freeze, then fill in what they lack, then go on.
    def freeze(self) -> list[int]:
        """Send nothing and take no result until go_on(). Sums can still be submitted. Returns when the threads have
        stopped, by slot the chunk that this rank completes next. Raises EngineError if the group has failed."""

    def kept(self, chunk: int) -> bytes:
        """As Engine.kept."""

    def fill(self, result: bytes) -> bool:
        """As Engine.fill. Raises ValueError if the transport is not frozen."""

    def go_on(
        self,
        job: JobShape,
        *,
        member: int | None = None,
        route: Route,
        sockets: Sockets,
        own_server: Server | Rounds | None = None,
        policy: RetransmissionPolicy = ...,
    ) -> None:
        """As Engine.go_on, with other sockets, of as many packet threads. Takes their descriptors over as the
        constructor does, and closes those of before. The own server must serve the job."""

    def fail(self, reason: str) -> None:
        """Fail the group: all unfinished collectives fail with code "failed" and a message with `reason`.

        After the return nothing accesses the arrays. The first failure stays.
        """

    @property
    def failure(self) -> EngineError | None: ...
    def stats(self) -> TransportStats: ...
    def close(self) -> None:
        """End the thread and close the socket; unfinished collectives fail with code "closed". Idempotent."""

@final
class Pulse:
    """Writes `beat` to a stream socket every `interval_s` seconds, without the GIL, until closed or until the
    connection ends. The caller keeps the socket and closes it afterwards. If the socket listens (without blocking),
    the pulse accepts connections, writes to each, and closes them at its end. A forked child has no pulse.
    """

    def __init__(self, *, socket_fd: int, beat: bytes, interval_s: float) -> None: ...
    def pause(self, within_s: float) -> float:
        """How many seconds late the last late beat of the process was: for so long its threads did not run. 0 if that
        ended more than within_s ago."""

    def close(self) -> None: ...

# Everything below is for tests and benchmarks.

@final
class Header:
    """The 20 bytes of protocol 2.1."""

    kind: int
    rank: int
    job: int
    epoch: int
    chunk: int
    checksum: int
    def __init__(
        self,
        *,
        kind: int,
        rank: int,
        job: int,
        flags: int,
        exponent: int,
        epoch: int,
        chunk: int,
        checksum: int,
    ) -> None: ...
    @property
    def flags(self) -> int: ...
    @property
    def exponent(self) -> int: ...
    @property
    def flags_check(self) -> int: ...
    @property
    def exponent_check(self) -> int: ...
    def encode(self) -> bytes: ...
    @staticmethod
    def decode(datagram: bytes) -> Header:
        """Decode a header. Raises ValueError if the datagram is too short, or has another version or kind."""

def guard_bits(workers: int) -> int: ...
def check_lanes(bits: int, workers: int) -> None:
    """Raise ValueError if lanes of 8, 16 or 32 `bits` are too narrow for the sums of `workers`."""

def block_elements(words: int, lane_bits: LaneBits) -> int: ...

@final
class BlockExponent:
    """What a worker announces of a block (protocol 3.2, 3.3)."""

    @property
    def code(self) -> int:
        """On the wire; 0: the block's lanes have no non-zero element."""

    @property
    def special(self) -> bool:
        """The block has a NaN or an infinity."""

    @property
    def wide(self) -> bool:
        """The block has outliers."""

    @property
    def limit(self) -> int:
        """The bits of the greatest magnitude in the block's lanes; larger elements travel apart."""

def block_exponent(
    block: NDArray[np.float32], *, lane_bits: LaneBits, workers: int, stochastic: bool = False
) -> BlockExponent: ...
def exponent_within(
    block: NDArray[np.float32], limit: int, *, lane_bits: LaneBits, workers: int, stochastic: bool = False
) -> int:
    """The wire code of the elements whose magnitudes have bits up to `limit`, be they outliers or not."""

def quantise(
    block: NDArray[np.float32],
    *,
    exponent: int,
    lane_bits: LaneBits,
    workers: int,
    words: int,
    limit: int | None = None,
    seed: int | None = None,
    first_element: int = 0,
) -> tuple[bytes, int]:
    """A block's words and their checksum for the wire code `exponent`.

    limit: elements whose magnitudes have larger bits count as zero; None: the block's own limit.
    seed: rounds stochastically, as elements first_element, first_element + 1... of a tensor.
    """

def residual(
    block: NDArray[np.float32],
    words: bytes,
    *,
    exponent: int,
    lane_bits: LaneBits,
    workers: int,
    out: NDArray[np.float32],
    limit: int | None = None,
) -> None:
    """The residual of each element of a block with lanes `words`; 0 beyond the limit (as for `quantise`)."""

def dequantise(
    words: bytes, *, elements: int, exponent: int, lane_bits: LaneBits, workers: int, average: bool = False
) -> tuple[NDArray[np.float32], int]:
    """The first `elements` sums of a result's words, and the checksum of all its lanes."""

def class_lanes(
    block: NDArray[np.float32], *, lane_bits: LaneBits, workers: int, words: int
) -> tuple[bytes, int]:
    """The words and checksum of the class lanes of a special block, or of a part of it (protocol 3.3)."""

def apply_classes(block: NDArray[np.float32], words: bytes, *, lane_bits: LaneBits, workers: int) -> int:
    """Write NaN and infinities into a block of sums, from the summed class lanes; return the lanes' checksum."""

def add_outliers(
    block: NDArray[np.float32],
    words: bytes,
    *,
    exponent: int,
    outlier_words: bytes,
    outlier_exponent: int,
    lane_bits: LaneBits,
    workers: int,
    average: bool = False,
) -> None:
    """Set the elements of a block that are outliers on some rank, from the words of both sums."""

def run_blocks(
    array: NDArray[np.float32],
    step: Literal["exponent", "quantise", "stochastic", "dequantise", "average"],
    *,
    exponent: int,
    lane_bits: LaneBits,
    workers: int,
    words: int,
    passes: int,
) -> None:
    """Run one step on every block of an array, `passes` times, with packet buffers of a window: for benchmarks.

    exponent: the wire code of all blocks, not less than any block's own. Lanes are discarded. "dequantise" and
    "average" fill the array with sums of arbitrary lanes.
    """

def widen(halves: Array, floats: NDArray[np.float32]) -> None:
    """Write 16-bit floats as float32, exactly. `floats` may be longer."""

def narrow(floats: NDArray[np.float32], halves: Array) -> None:
    """Write floats as 16-bit floats, rounded to nearest even. `halves` may be longer."""

def available_kernels() -> list[str]:
    """Builds of the numerics that this machine can run, fastest first. The first is used."""

def use_kernels(name: str) -> None:
    """Use another build, in the whole process."""

@final
class RttEstimator:
    """RFC 6298 as in protocol 6.1."""

    def __init__(
        self, *, rto_initial_s: float = 0.1, rto_min_s: float = 0.001, rto_max_s: float = 1.0
    ) -> None: ...
    def measure(self, rtt_s: float, packets: int = 1) -> bool:
        """Process the RTT of so many packets; return True if it completed a sample."""

    def sample(self, rtt_s: float) -> None: ...
    def timeout(self, probes: int) -> float:
        """How long silence lasts before the next probe, after so many in a row."""

    @property
    def rto_s(self) -> float: ...
    @property
    def srtt_s(self) -> float: ...
    @property
    def rttvar_s(self) -> float: ...
