"""Packets a second of p4/inagg.p4 in one process on one core, driven by native code.

    .venv/bin/python tests/bench/bench_switch.py

Four workers' DATA packets of 1 KiB of payload, in turn: three quarters of them start or add to a slot, the
fourth completes the sum and makes four copies of the result.
"""

import ctypes
import statistics
import struct
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from inagg_switch.compiler.build import compile_cpp
from inagg_switch.program import Program

SOURCE = Path(__file__).with_suffix(".cpp")
P4 = Path(__file__).parents[2] / "p4" / "inagg.p4"
WORKERS, SLOTS, EPOCH, JOB, GROUP = 4, 64, 7, 1, 2
AGGREGATOR = bytes([10, 0, 0, 253])
CHUNK_OFFSET = 14 + 20 + 8 + 12
ROUNDS, REPEATS = 200_000, 5


@dataclass(frozen=True)
class Rate:
    """What a run took: packets put in, frames that left, seconds."""

    packets: int
    sent: int
    seconds: float

    @property
    def packets_per_second(self) -> float:
        """Packets put in a second."""
        return self.packets / self.seconds


class Bench:
    """The native driver, compiled for this machine."""

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory(prefix="inagg-bench-") as folder:
            library = Path(folder) / "bench.so"
            compile_cpp(SOURCE, library)
            self._run = ctypes.CDLL(str(library)).isw_bench
        self._run.restype = ctypes.c_double

    def run(
        self,
        program: Program,
        packets: Sequence[tuple[int, bytes]],
        rounds: int,
        first_round: int = 0,
        counter_offset: int = -1,
    ) -> Rate:
        """Sends the (port, frame) pairs in order, `rounds` times; see bench_switch.cpp for the rest."""
        count = len(packets)
        buffers = [ctypes.create_string_buffer(frame, len(frame)) for _, frame in packets]
        ports = (ctypes.c_uint32 * count)(*(port for port, _ in packets))
        frames = (ctypes.c_void_p * count)(*(ctypes.addressof(b) for b in buffers))
        lengths = (ctypes.c_size_t * count)(*(len(frame) for _, frame in packets))
        sent = ctypes.c_uint64()
        seconds = self._run(
            ctypes.c_void_p(program.api_address),
            ctypes.c_void_p(program.handle),
            ports,
            frames,
            lengths,
            ctypes.c_size_t(count),
            ctypes.c_uint64(first_round),
            ctypes.c_uint64(rounds),
            ctypes.c_int64(counter_offset),
            ctypes.byref(sent),
        )
        return Rate(count * rounds, sent.value, seconds)


def contribution(rank: int, words: int) -> bytes:
    """A DATA packet of one worker, for chunk 0."""
    payload = bytes([0, 0, 0, rank + 1]) * (words * 64)
    udp = 8 + 20 + len(payload)
    source = bytes([10, 0, 0, rank + 1])
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + udp, 0, 0, 64, 17, 0, source, AGGREGATOR)
    total = sum(struct.unpack("!10H", ip))
    total = (total & 0xFFFF) + (total >> 16)
    ip = ip[:10] + struct.pack("!H", ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF) + ip[12:]
    ethernet = bytes(6) + bytes([2, 0, 0, 0, 0, rank + 1]) + b"\x08\x00"
    header = struct.pack("!BBHBBHIII", 1, 2, JOB, rank, 0, 0, EPOCH, 0, 0)
    return ethernet + ip + struct.pack("!HHHH", 5000, 0x4941, udp, 0) + header + payload


def loaded_program() -> Program:
    """The program with one job of four workers on ports 1 to 4."""
    program = Program.from_p4(P4)
    program.multicast_group(GROUP, [(rank + 1, rank + 1) for rank in range(WORKERS)])
    for rank in range(WORKERS):
        ip = int.from_bytes(bytes([10, 0, 0, rank + 1]))
        program.insert(
            "admission",
            {"port": rank + 1, "source": ip, "job": JOB, "rank": rank},
            "admit",
            {
                "worker": 1 << rank,
                "all": (1 << WORKERS) - 1,
                "slot_base": 0,
                "slot_mask": 2 * SLOTS - 1,
                "epoch": EPOCH,
                "result_group": GROUP,
            },
        )
        program.insert(
            "receiver", {"job": JOB, "rank": rank}, "deliver", {"mac": rank + 1, "ip": ip, "udp_port": 5000}
        )
    return program


def main() -> None:
    """Measure, and say with what settings."""
    program, bench = loaded_program(), Bench()
    packets = [(rank + 1, contribution(rank, words=4)) for rank in range(WORKERS)]
    rates = []
    for repeat in range(REPEATS + 1):  # the first warms up
        rate = bench.run(program, packets, ROUNDS, repeat * ROUNDS, CHUNK_OFFSET)
        assert rate.sent == rate.packets, "every sum makes as many results as it took packets"
        rates.append(rate.packets_per_second / 1e6)
    rates = rates[1:]
    print(
        f"{WORKERS} workers, 1 KiB of payload, {ROUNDS * WORKERS} packets, {REPEATS} runs: median "
        f"{statistics.median(rates):.2f} million packets/s in (from {min(rates):.2f} to {max(rates):.2f})"
    )


if __name__ == "__main__":
    main()
