# SPDX-License-Identifier: Apache-2.0
"""The C++ core: wire format, numerics, the sans-IO engine, and the UDP transport (docs/protocol.md).

Times are seconds. Bad arguments raise ValueError (of the wrong type: TypeError) and change nothing. What goes wrong
later raises EngineError.
"""

from typing import Any, Final, Literal, Protocol, TypeAlias, TypedDict, final, overload

import numpy as np
from numpy.typing import NDArray

ErrorCode: TypeAlias = Literal["checksum", "kind_mismatch", "give_up", "failed", "closed"]
LaneBits: TypeAlias = Literal[8, 16, 32]

class Array(Protocol):
    """A contiguous, writable, one-dimensional float32 array in CPU memory: numpy, or a torch tensor (detached)."""

    def __dlpack__(self, *, stream: Any = ...) -> Any: ...
    def __dlpack_device__(self) -> tuple[Any, int]: ...

# Every constant of p4/include/constants.p4 by its name there (INAGG_PORT, KIND_DATA, WORD_BYTES...), and this
# core's FLAG_SPECIAL and EXPONENT_BIAS.
CONSTANTS: Final[dict[str, int]]

class EngineError(RuntimeError):
    """The group is broken: every unfinished collective has failed, and so will later ones, with this error.

    code        "checksum"       a chunk's result failed its checksum, or has an exponent or flags that cannot be,
                                 however often it was asked for
                "kind_mismatch"  a result's kind is not our contribution's: the ranks disagree on the collective
                "give_up"        nothing was received for the give-up time
                "failed"         fail() was called, or the socket broke; the message has the reason
                "closed"         close() was called
    collective  ticket of the collective concerned; None when none was unfinished
    chunk       chunk concerned (for "give_up", "failed", "closed": the oldest outstanding); None when there is none
    """

    code: ErrorCode
    message: str
    job: int
    rank: int
    collective: int | None
    chunk: int | None

class EngineStats(TypedDict):
    """Counts since the start. Bytes are UDP payload: the inagg header and the words."""

    packets_sent: int  # resends included
    bytes_sent: int
    packets_received: int  # results that were right and expected
    bytes_received: int
    retransmits: int
    duplicates_received: int  # results of chunks that were not outstanding
    discarded: int  # datagrams with a wrong header, length, job or epoch
    corrupt: int  # results of outstanding chunks that did not fit and were asked for again
    chunks_completed: int
    collectives_completed: int
    special_blocks: int  # blocks with a NaN or infinity at some rank
    probes: int  # of these, so many after a silence
    in_flight: int  # chunks outstanding now
    window: int  # chunks that may be
    window_limit: int  # what the window may grow to: the slots granted, within what the receive buffer holds
    least_rtt_s: float  # of the last seconds; 0 before the first
    waited_s: float  # for other ranks to begin a collective, in all
    silent_s: float  # before probes, in collectives that all ranks had begun
    rtt_samples: int
    srtt_s: float  # 0.0 before the first sample
    rttvar_s: float
    rto_s: float

class TransportStats(EngineStats):
    send_calls: int
    receive_calls: int
    send_refusals: int  # sends that the kernel refused (buffer full) and that were tried again
    network_errors: (
        int  # ICMP errors and unreachable routes reported by the socket; timers cover what was lost
    )
    segmentation: bool  # several datagrams go to the kernel in one piece (UDP_SEGMENT)
    receive_buffer_bytes: int  # as granted by the kernel
    receive_buffer_wanted_bytes: int  # what a whole window of results takes
    # Time with a collective under way, and nothing to do but
    device_s: float  # wait for a device to scan or pack it
    beginning_s: float  # wait until all ranks were known to have begun the oldest
    window_s: float  # wait for the window to let out what could be sent
    answers_s: float  # wait for answers
    peak_rate: float  # the most results in a tenth of that: bytes of Ethernet frames a second
    processor_s: float  # the thread has run
    processor_wait_s: float  # and has waited for a processor

@final
class Staging:
    """Host memory between a device that holds `elements` floats and the engine, for one collective: submit it once.

    Each of the K blocks has the datagram that carries it (its lanes, later those of its sum), an exponent, an agreed
    exponent and a checksum. All of it lies in `memory` (4-byte aligned, at least bytes_needed() long, page-locked if
    the device likes that; allocated here if None), which the Staging keeps alive, as the Transport keeps the Staging.
    The same memory may serve another Staging once the collective is done or the group has failed.

    A device scans all blocks (exponents, then scanned()); packs blocks, in order, as progress() tells of their agreed
    exponents (lanes and checksums, then packed()); and unpacks blocks, in order, as progress() tells of their sums. The
    engine reads nothing before scanned() and packed() have said that it is there.
    """

    def __init__(
        self,
        elements: int,
        *,
        lane_bits: LaneBits,
        workers: int,
        words: int,
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
        """L, of the last block too: its lanes beyond the elements are those of zeros (protocol 3.1)."""

    @property
    def stride(self) -> int:
        """Bytes from a datagram to the next, and of each."""

    @property
    def offset(self) -> int:
        """Bytes from a datagram's start to its lanes. What is before them is the engine's."""

    @property
    def datagrams(self) -> NDArray[np.uint8]:
        """[K, stride]: this rank's lanes until packed(); then the engine's; the lanes of the sum once it is summed."""

    @property
    def exponents(self) -> NDArray[np.uint16]:
        """[K]: of this rank's blocks, wire codes (protocol 3.2), with 0x8000 where a NaN or an infinity is."""

    @property
    def agreed(self) -> NDArray[np.uint16]:
        """[K]: the maximum over the ranks, with 0x8000 where any has a NaN or an infinity; of blocks below `known`."""

    @property
    def checksums(self) -> NDArray[np.uint32]:
        """[K]: of this rank's lanes, all L of each block: their sum mod 2^32."""

@final
class Engine:
    """One worker's protocol engine, for tests: no socket, no clock. Not thread-safe.

    `first_chunk` is 0 in a real job (protocol 7); tests set it to cross the wrap of chunk numbers.
    """

    def __init__(
        self,
        *,
        job: int,
        rank: int,
        workers: int,
        epoch: int,
        slots: int,
        words: int,
        rto_initial_s: float = 0.1,
        rto_min_s: float = 0.01,
        rto_max_s: float = 1.0,
        give_up_s: float = 120.0,
        first_chunk: int = 0,
    ) -> None: ...
    def submit(
        self,
        array: NDArray[np.float32],
        *,
        lane_bits: LaneBits = 32,
        average: bool = False,
        stochastic: int | None = None,
        context: int = 0,
        residual: NDArray[np.float32] | None = None,
        now: float = 0.0,
    ) -> int:
        """Queues an in-place all-reduce and returns its ticket: 1, 2, 3... Raises EngineError once failed.

        With `stochastic`, a seed of its own for each rank and collective, rounding is stochastic (protocol 3.1).
        `context`, 32 bits, is part of the fingerprint: ranks that give different ones fail (protocol 3.2).
        `residual`, as long as the array, receives what this rank's lanes leave out of each element.
        """

    def submit_staged(
        self, staging: Staging, *, average: bool = False, context: int = 0, now: float = 0.0
    ) -> int:
        """Queues the all-reduce of what will be in a Staging, and returns its ticket. Other ranks may submit arrays.

        It keeps this place in the order of collectives; those behind it wait for its scanned(). An empty one is done at
        once and needs nothing more.
        """

    def scanned(
        self,
        staging: Staging,
        special_blocks: NDArray[np.int64],
        special_elements: NDArray[np.float32],
        *,
        now: float = 0.0,
    ) -> None:
        """The exponents are in. special_blocks [m]: those marked with 0x8000, in ascending order; special_elements
        [m, L]: their floats (of the last block as many as it has count)."""

    def packed(self, staging: Staging, blocks: int, *, now: float = 0.0) -> None:
        """The lanes and checksums of the first `blocks` blocks are in, under their agreed exponents."""

    def progress(self, staging: Staging) -> tuple[int, int]:
        """(known, summed): agreed exponents, and lanes of sums, are there for so many blocks from the first on."""

    def special_sums(self, staging: Staging) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Once done: the blocks [m] that were special at some rank, and their sums [m, L], averaged if asked."""

    def receive(self, datagram: bytes, now: float) -> None: ...
    def to_send(self, now: float, limit: int | None = None) -> list[bytes]:
        """Fires the timers that are due and returns every datagram to send now; with a limit, so many of them, as if
        the socket refused the rest of a batch."""

    def deadline(self) -> float | None:
        """When to_send() is to be called at the latest; None while nothing is outstanding."""

    def completed(self) -> list[int]:
        """Tickets completed since the last call, in the order of their completion."""

    def fail(self, reason: str) -> None:
        """Breaks the group from outside. The first failure stays."""

    @property
    def failure(self) -> EngineError | None: ...
    @property
    def stats(self) -> EngineStats: ...

@final
class Transport:
    """One worker's engine on a UDP socket, run by a thread of its own. All methods may be called from any thread.

    The socket is either bound here to `local` (ip, port; port 0 picks one) or given as `socket_fd`, an already bound
    UDP socket's descriptor that the transport takes over (so that a worker can register its port before it knows its
    epoch): socket.detach() it. If the constructor raises, the descriptor is still the caller's.
    Raises OSError when the socket cannot be made or connected.
    """

    def __init__(
        self,
        *,
        job: int,
        rank: int,
        workers: int,
        epoch: int,
        slots: int,
        words: int,
        aggregator: tuple[str, int],
        local: tuple[str, int] | None = None,
        socket_fd: int | None = None,
        rto_initial_s: float = 0.1,
        rto_min_s: float = 0.01,
        rto_max_s: float = 1.0,
        give_up_s: float = 120.0,
        spin_s: float = 0.0,
    ) -> None:
        """spin_s: how long to poll for packets before sleeping, in seconds; see Options.spin_us."""

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
    ) -> int:
        """Queues an in-place all-reduce; returns its ticket (1, 2, 3...). Does not wait.

        All ranks submit the same collectives in the same order. The array is kept alive until the ticket is done, and
        must not be touched or submitted again before. Raises EngineError once the group has failed or was closed.
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

    def submit_staged(self, staging: Staging, *, average: bool = False, context: int = 0) -> int:
        """Queues the all-reduce of what will be in a Staging, and returns its ticket. Other ranks may submit arrays.

        It keeps this place in the order of collectives; those behind it wait for its scanned(). An empty one is done at
        once and needs nothing more.
        """

    def scanned(
        self, staging: Staging, special_blocks: NDArray[np.int64], special_elements: NDArray[np.float32]
    ) -> None:
        """The exponents are in. special_blocks [m]: those marked with 0x8000, in ascending order; special_elements
        [m, L]: their floats (of the last block as many as it has count)."""

    def packed(self, staging: Staging, blocks: int) -> None:
        """The lanes and checksums of the first `blocks` blocks are in, under their agreed exponents."""

    def progress(
        self, staging: Staging, known: int, summed: int, timeout_s: float | None = None
    ) -> tuple[int, int] | None:
        """Waits until agreed exponents are there for more than the first `known` blocks, or the lanes of sums for more
        than the first `summed`, or the collective is done; returns both. None after timeout_s; EngineError when it
        failed. To wait for one of the two alone, give `blocks` for the other.

        Lanes of a block that is special at some rank are not written: its sums are in special_sums().
        """

    def special_sums(self, staging: Staging) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Once done: the blocks [m] that were special at some rank, and their sums [m, L], averaged if asked."""

    def wait(self, ticket: int, timeout_s: float | None = None) -> bool:
        """True when the collective is done; False after timeout_s; EngineError when it failed. None waits forever."""

    def watch(self, ticket: int) -> None:
        """Has next_done() tell of this ticket, once, also if it is done already."""

    def next_done(self, timeout_s: float | None = None) -> int | None:
        """The next watched ticket that is done, in order of completion; None after timeout_s.

        Tickets done before a failure are told first; then EngineError is raised.
        """

    def fail(self, reason: str) -> None:
        """Breaks the group: all unfinished collectives fail with code "failed" and a message with `reason`.

        On return nothing touches the arrays any more. The first failure stays.
        """

    @property
    def failure(self) -> EngineError | None: ...
    def stats(self) -> TransportStats: ...
    def close(self) -> None:
        """Ends the thread and closes the socket; unfinished collectives fail with code "closed". Idempotent."""

@final
class Pulse:
    """Writes `beat` to a stream socket every `interval_s` seconds, whatever holds the GIL, until closed or until the
    connection ends. The socket stays the caller's, to be closed afterwards. In a forked child there is no pulse.
    """

    def __init__(self, *, socket_fd: int, beat: bytes, interval_s: float) -> None: ...
    def close(self) -> None: ...

# The rest is for tests.

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
        """Raises ValueError for a datagram shorter than a header, or of another version or kind."""

def guard_bits(workers: int) -> int: ...
def block_elements(words: int, lane_bits: LaneBits) -> int: ...
def block_exponent(
    block: NDArray[np.float32], *, lane_bits: LaneBits, workers: int, stochastic: bool = False
) -> tuple[int, bool]:
    """The wire code of a block's exponent (0: no finite non-zero element), and whether it has a NaN or infinity."""

def quantise(
    block: NDArray[np.float32],
    *,
    exponent: int,
    lane_bits: LaneBits,
    workers: int,
    words: int,
    seed: int | None = None,
    first_element: int = 0,
) -> tuple[bytes, int]:
    """A block's words and their checksum under the wire code `exponent`; NaN and infinities count as zero.

    With a seed it is rounded stochastically, as elements first_element, first_element + 1... of a tensor.
    """

def residual(
    block: NDArray[np.float32],
    words: bytes,
    *,
    exponent: int,
    lane_bits: LaneBits,
    workers: int,
    out: NDArray[np.float32],
) -> None:
    """What the lanes of a block in `words` leave out of it, element by element; 0 for NaN and infinities."""

def dequantise(
    words: bytes, *, elements: int, exponent: int, lane_bits: LaneBits, workers: int, average: bool = False
) -> tuple[NDArray[np.float32], int]:
    """The first `elements` sums of a result's words, and the checksum of all its lanes."""

def class_lanes(
    block: NDArray[np.float32], *, lane_bits: LaneBits, workers: int, words: int
) -> tuple[bytes, int]:
    """The words and checksum of the class lanes of a special block, or of a part of it (protocol 3.3)."""

def apply_classes(block: NDArray[np.float32], words: bytes, *, lane_bits: LaneBits, workers: int) -> int:
    """Puts NaN and infinities into a block of sums as the summed class lanes say; returns the lanes' checksum."""

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
    """Does one thing to every block of an array, in passes, with packet buffers for a window: for benchmarks.

    `exponent` is a wire code for all blocks, no less than that of any.

    Lanes are thrown away; sums ("dequantise", or "average" of them) are made up, and fill the array.
    """

def available_kernels() -> list[str]:
    """Builds of the numerics that this machine can run, the best first: that is used."""

def use_kernels(name: str) -> None:
    """Uses another one, in the whole process."""

@final
class RttEstimator:
    """RFC 6298 as in protocol 6.1."""

    def __init__(
        self, *, rto_initial_s: float = 0.1, rto_min_s: float = 0.01, rto_max_s: float = 1.0
    ) -> None: ...
    def measure(self, rtt_s: float) -> bool:
        """An RTT; True if it completed a sample."""

    def sample(self, rtt_s: float) -> None: ...
    def timeout(self, resends: int) -> float:
        """How long a chunk waits that was sent again `resends` times without a sign of life."""

    @property
    def rto_s(self) -> float: ...
    @property
    def srtt_s(self) -> float: ...
    @property
    def rttvar_s(self) -> float: ...
