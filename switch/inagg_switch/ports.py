# SPDX-License-Identifier: Apache-2.0
"""Packet ports: network interfaces as the ports of a P4 program.

A port is AF_PACKET sockets on an interface (veth, tap, NIC) in the network namespace of this process. Native threads
serve all ports (native/ports/packet_loop.hpp); several divide the frames among them. This module checks the user's
options and explains errors.
"""

import errno
import logging
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from inagg_switch import _ports
from inagg_switch._ports import PacketLoop
from inagg_switch.errors import SwitchError
from inagg_switch.fan_out import FanOutDevices
from inagg_switch.impairment import Direction, Impairment
from inagg_switch.program.abi import check_threads

logger = logging.getLogger(__name__)

DROP_PORT = 511  # BMv2's
MAX_PORT = DROP_PORT - 1
MAX_PRIORITY_QUEUES = 8  # v1model's priority is bit<3>


class PortError(SwitchError):
    """A port cannot be used: its name is wrong, its interface does not exist, or the process lacks the permission."""


class LoadedProgram(Protocol):
    """The part of inagg_switch.switch.Switch that ports need."""

    @property
    def api_address(self) -> int: ...

    @property
    def handle(self) -> int: ...

    @property
    def threads(self) -> int: ...


@dataclass(frozen=True)
class PortSpec:
    """A port number of the P4 program and its interface."""

    id: int
    interface: str

    @classmethod
    def parse(cls, text: str) -> "PortSpec":
        """Parse "ID@INTERFACE", such as "1@veth1". Raises PortError."""
        number, separator, interface = text.partition("@")
        if not separator or not interface or not number.isascii() or not number.isdigit():
            raise PortError(f"port {text!r}: expected ID@INTERFACE, for example 1@veth1")
        if not 0 <= int(number) <= MAX_PORT:
            raise PortError(f"port {text!r}: the id must be between 0 and {MAX_PORT}")
        return cls(int(number), interface)


@dataclass(frozen=True)
class PortStatistics:
    """Counts of a port since the start. drops: packets by reason. impaired: packets by direction and effect of an
    impairment, such as rx_lost."""

    id: int
    interface: str
    up: bool
    rx_packets: int
    rx_bytes: int
    tx_packets: int
    tx_bytes: int
    drops: dict[str, int]
    impaired: dict[str, int]


@dataclass(frozen=True)
class FanOutStatistics:
    """Multicasts that left once for several ports.

    devices: in use now, or when the ports stopped. packets: since the start. refusal: why the kernel makes no devices;
    None if it has refused none.
    """

    devices: int
    packets: int
    refusal: str | None


@dataclass(frozen=True, kw_only=True)
class PortOptions:
    """Options of all ports; buffers are for each port."""

    receive_buffer_bytes: int = 32 << 20
    # Larger than usual tbf limits, so that packets of a shaped port queue in its qdisc, which decides what to drop.
    send_buffer_bytes: int = 32 << 20
    queue_frames: int = 1024
    queue_bytes: int = 4 << 20
    # Exchange frames with segmentation and checksum offloads, if the kernel supports it (Linux 6.2).
    offloads: bool = True
    # Send equal copies of a multicast once, if the kernel can clone them. Needs offloads.
    fan_out: bool = True
    # Port whose packets go to the controller (packet-in); None: no such port.
    cpu_port: int | None = None
    # Queues of each port: a packet with a higher standard_metadata.priority leaves first. Packets of a priority without
    # a queue are dropped. More than one needs one thread.
    priority_queues: int = 1
    # Folder for capture files, one for each port and direction: portN_in.pcap and portN_out.pcap, or by interface as
    # BMv2 names them, INTERFACE_in.pcap and INTERFACE_out.pcap.
    captures: Path | None = None
    captures_by_interface: bool = False
    # Threads that receive, run the program and send. None: as many as suit the processors.
    threads: int | None = 1
    # Of this switch among others. Impairments of switches with different numbers draw differently.
    number: int = 1


def drop_capabilities() -> None:
    """Keep only the capabilities that open ports need, and CAP_DAC_OVERRIDE (native/ports/capabilities.cpp).

    Threads have capabilities of their own: call it before the process has a second one. Raises PortError.
    """
    try:
        _ports.drop_capabilities()
    except OSError as error:
        raise PortError(f"cannot give up capabilities: {error.strerror}") from None


def threads_of(options: PortOptions, ports: int) -> int:
    """How many threads a switch with these options has."""
    if options.threads is not None:
        return options.threads
    return 1 if options.priority_queues > 1 else suitable_threads(ports)


def suitable_threads(ports: int) -> int:
    """How many threads suit a switch on this machine. Its hosts mostly run here too: with fewer than eight processors
    the hosts need all but one. Eight threads are faster than the hosts."""
    processors = len(os.sched_getaffinity(0))
    return 1 << max(1, min(processors // 4, ports, 8)).bit_length() - 1


def _open_all(specs: Sequence[PortSpec], options: PortOptions, threads: int) -> list[PacketLoop]:
    """A loop for each thread. Raises PortError; none is open then."""
    loops: list[PacketLoop] = []
    try:
        for thread in range(threads):
            loops.append(_open(specs, options, thread, loops[0] if loops else None))
    except PortError:
        for loop in reversed(loops):
            loop.stop()
        raise
    return loops


def _open(
    specs: Sequence[PortSpec], options: PortOptions, thread: int, first: PacketLoop | None
) -> PacketLoop:
    try:
        return PacketLoop(
            [(spec.id, spec.interface) for spec in specs],
            receive_buffer_bytes=options.receive_buffer_bytes,
            send_buffer_bytes=options.send_buffer_bytes,
            queue_frames=options.queue_frames,
            queue_bytes=options.queue_bytes,
            offloads=options.offloads,
            fan_out=options.fan_out,
            cpu_port=options.cpu_port or 0,
            priority_queues=options.priority_queues,
            captures=[
                str(
                    options.captures / (spec.interface if options.captures_by_interface else f"port{spec.id}")
                )
                for spec in specs
                if options.captures is not None
            ],
            thread=thread,
            first=first,
        )
    except OSError as error:
        what = (error.strerror or str(error)).partition(":")[0]
        if error.errno == errno.ENODEV:
            reason = "there is no such interface in this network namespace (ip link lists them)"
        elif error.errno in (errno.EPERM, errno.EACCES):
            reason = "no permission to open a packet socket: run as root, or with CAP_NET_RAW"
        else:
            reason = os.strerror(error.errno or 0)
        raise PortError(f"{what}: {reason}") from None
    except ValueError as error:
        raise PortError(str(error)) from None


def _check_options(specs: Sequence[PortSpec], options: PortOptions) -> None:
    threads = threads_of(options, len(specs))
    check_threads(threads)
    if not 1 <= options.priority_queues <= MAX_PRIORITY_QUEUES:
        raise PortError(
            f"{options.priority_queues} priority queues: it must be 1 to {MAX_PRIORITY_QUEUES}, as priority has 3 bits"
        )
    if threads > 1 and options.priority_queues > 1:
        raise PortError("priority queues need a switch of one thread")
    if options.cpu_port is not None and not 1 <= options.cpu_port <= MAX_PORT:
        raise PortError(f"CPU port {options.cpu_port}: it must be between 1 and {MAX_PORT}")
    if options.captures is not None:
        try:
            options.captures.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PortError(f"captures in {options.captures}: {error.strerror}") from None


def _sum(
    counts: Sequence[tuple[int, str, bool, tuple[int, int, int, int], dict[str, int], dict[str, int]]],
) -> PortStatistics:
    """The counts of one port by all threads."""
    port, interface, up, *_ = counts[0]
    rx_packets, rx_bytes, tx_packets, tx_bytes = (sum(one[3][i] for one in counts) for i in range(4))
    drops, impaired = (
        {name: sum(one[name] for one in each) for name in each[0]}
        for each in ([one[4] for one in counts], [one[5] for one in counts])
    )
    return PortStatistics(port, interface, up, rx_packets, rx_bytes, tx_packets, tx_bytes, drops, impaired)


class Ports:
    """The ports of one switch. Frames are dropped (and counted) until a program is set."""

    def __init__(self, specs: Sequence[PortSpec], options: PortOptions | None = None) -> None:
        """Open all ports. Raises PortError if one cannot be opened; none is open then. Raises SwitchError for a wrong
        number of threads."""
        options = options or PortOptions()
        _check_options(specs, options)
        self.cpu_port = options.cpu_port
        self._priority_queues = options.priority_queues
        self._ids = {spec.id for spec in specs}
        # Whether the number of threads was left to this class: then a program for one thread may run too.
        self.chose_threads = options.threads is None
        self.threads = threads_of(options, len(specs))
        self._has_limits = False
        self._number = options.number
        self._impairments: dict[tuple[int, Direction], Impairment] = {}
        self._loops = _open_all(specs, options, self.threads)
        self._first = self._loops[0]
        self._fan_outs = [FanOutDevices(loop) for loop in self._loops]
        self._program: LoadedProgram | None = None
        self._events = threading.Thread(target=self._log_events, name="inagg-port-events", daemon=True)
        self._stopped = False

    def start(self) -> None:
        """Start to move packets."""
        logger.info("threads: %d, of %d processors", self.threads, len(os.sched_getaffinity(0)))
        for loop in self._loops:
            loop.start()
        self._events.start()
        for fan_outs in self._fan_outs:
            fan_outs.start()

    def stop(self) -> None:
        """Stop and close the ports; statistics() stays usable. Idempotent."""
        if self._stopped:
            return
        self._stopped = True
        for loop in reversed(self._loops):
            loop.stop()
        if self._events.is_alive():
            self._events.join()
        for fan_outs in self._fan_outs:
            fan_outs.stop()
        self._program = None

    def set_program(self, program: LoadedProgram) -> None:
        """Run packets through `program`; after the return the previous one is unused. Raises PortError if it is made
        for more threads than the ports have."""
        if program.threads > self.threads:
            raise PortError(f"a program of {program.threads} threads: the ports have {self.threads}")
        if self._has_limits and program.threads > 1:
            raise PortError(f"a program of {program.threads} threads: queues with limits need one")
        others = self._loops[1:]
        try:
            if not self._is_divided_as(program):
                # No frame is received twice: the other threads have no frames while thread 0 may have all. Some may be
                # received by none.
                for loop in others:
                    loop.set_program(0, 0, 1)
            for loop in self._loops:
                loop.set_program(program.api_address, program.handle, program.threads)
        except OSError as error:
            for loop in self._loops:
                with suppress(OSError):
                    loop.set_program(0, 0, 1)
            self._program = None
            raise PortError(f"the frames cannot be divided among the threads: {error.strerror}") from None
        # After the lines above, because this assignment may free the previous program.
        self._program = program

    def _is_divided_as(self, program: LoadedProgram) -> bool:
        """Whether the threads have the same frames with a program as with the present one."""
        if self._program is None:
            return program.threads == 1
        before = (self._program.api_address, self._program.threads)
        return (
            before == (program.api_address, program.threads) or self._program.threads == program.threads == 1
        )

    def statistics(self) -> list[PortStatistics]:
        """The counts of every port, in the order of the constructor's list."""
        return [_sum(counts) for counts in zip(*(loop.statistics() for loop in self._loops), strict=True)]

    def has_offloads(self) -> bool:
        """Whether frames with offloads are exchanged: they were requested, and the kernel supports them."""
        return self._first.has_offloads()

    def fan_out(self) -> FanOutStatistics:
        """How many multicasts left once for several ports."""
        devices, packets = zip(*(loop.fan_out_statistics() for loop in self._loops), strict=True)
        refusals = (fan_outs.refusal for fan_outs in self._fan_outs)
        return FanOutStatistics(
            sum(devices), sum(packets), next((r for r in refusals if r is not None), None)
        )

    def unknown_port_drops(self) -> int:
        """Number of frames that the program sent to a port that does not exist."""
        return sum(loop.unknown_port_drops() for loop in self._loops)

    def next_to_cpu(self) -> bytes | None:
        """Wait for the next frame that the program sends to the CPU port. None after the ports have stopped."""
        return self._first.next_to_cpu()

    def to_cpu_drops(self) -> int:
        """Number of frames to the CPU port that were dropped because too many waited for next_to_cpu()."""
        return sum(loop.to_cpu_drops() for loop in self._loops)

    def inject(self, port: int, frame: bytes) -> bool:
        """Queue a frame for the program, as if received on `port`. False: dropped, because too many wait."""
        return self._first.inject(port, frame)

    def set_queue_rate(
        self, packets_per_second: int, port: int | None = None, priority: int | None = None
    ) -> None:
        """Set the rate at which a port's queue sends; 0: as fast as the link. None: of all ports, or priorities. Raises
        PortError."""
        self._check_queue(port, priority)
        self._has_limits = True
        self._first.limit_queues(port, priority, packets_per_second=packets_per_second)

    def set_queue_depth(self, packets: int, port: int | None = None, priority: int | None = None) -> None:
        """Set how many packets a port's queue holds; 0: as many as fit. The rest is set_queue_rate()'s."""
        self._check_queue(port, priority)
        self._has_limits = True
        self._first.limit_queues(port, priority, depth=packets)

    def _check_queue(self, port: int | None, priority: int | None) -> None:
        if self._program is not None and self._program.threads > 1:
            raise PortError("queues with limits need a program of one thread: --threads 1")
        if port is not None and port not in self._ids:
            raise PortError(f"there is no port {port}")
        if priority is not None and priority >= self._priority_queues:
            raise PortError(
                f"there is no queue of priority {priority}: the switch was started with"
                f" --priority-queues {self._priority_queues}"
            )

    def impair(self, port: int, direction: Direction, impairment: Impairment | None) -> None:
        """Impair the packets that a port receives (`in`) or sends (`out`); None: no longer, and those that wait go on
        at once. Takes effect within the next burst. Raises PortError."""
        if port not in self._ids:
            raise PortError(f"there is no port {port}")
        for thread, loop in enumerate(self._loops):
            native = (
                None
                if impairment is None
                else impairment.native(number=self._number, port=port, direction=direction, thread=thread)
            )
            loop.impair(port, direction == "in", native)
        self._impairments.pop((port, direction), None)
        if impairment is not None:
            self._impairments[port, direction] = impairment

    def impairments(self) -> dict[tuple[int, Direction], Impairment]:
        """The impairments in effect, by port and direction."""
        return dict(self._impairments)

    def now(self) -> float:
        """The program's time, in seconds."""
        return self._first.now_us() * 1e-6

    def _log_events(self) -> None:
        while (event := self._first.next_event()) is not None:
            is_warning, _, text = event
            logger.log(logging.WARNING if is_warning else logging.INFO, "%s", text)
