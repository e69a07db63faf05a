"""Packets a second through a running switch: hosts in network namespaces -> switch -> hosts.

    sudo .venv/bin/python tests/bench/bench_ports.py [--workers 4] [--seconds 3] [--repeat 5] [--json FILE]

Two loads, each as it is, with offloads off on the hosts' interfaces:
  forward    host 1 sends 1 KiB datagrams to host 2 as fast as it can; what leaves the switch is counted
  aggregate  N workers send DATA contributions (WORDS=4) with a window of chunks in flight, and wait for results
Reported is the median over the repetitions, with the slowest and the fastest.
"""

import argparse
import json
import multiprocessing
import os
import signal
import socket
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "switch"))

from switch_network import Network  # noqa: E402

UDP_SEGMENT = 103
SEGMENTS = 32  # contributions a system call
WINDOW = 2 * SEGMENTS
SLOTS = 256
HEADER = struct.Struct("!BBHBBHIII")
WORDS_BYTES = 1024
NEVER = 2**40


def flood(net: Network, seconds: float) -> int:
    """Sends from host 1 to host 2 for so long; the number of datagrams sent."""
    with net.inside(net.host(1)):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.setsockopt(socket.SOL_UDP, UDP_SEGMENT, WORDS_BYTES)
    sender.connect((net.ip(2), 9))
    burst, sent, end = bytes(WORDS_BYTES * SEGMENTS), 0, time.monotonic() + seconds
    with sender:
        while time.monotonic() < end:
            try:
                sender.send(burst)
                sent += SEGMENTS
            except ConnectionRefusedError:  # host 2 says that nobody listens
                pass
    return sent


def worker(net: Network, rank: int, shared: Any, seconds: float) -> None:
    """A worker's process: keeps WINDOW chunks in flight for so long; its port, then its chunks, go to `shared`."""
    with net.inside(net.host(rank + 1)):
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.bind((net.ip(rank + 1), 0))
    udp.setsockopt(socket.SOL_UDP, UDP_SEGMENT, HEADER.size + WORDS_BYTES)
    udp.setsockopt(socket.SOL_SOCKET, 33, 16 << 20)  # SO_RCVBUFFORCE
    udp.connect(("10.0.0.253", 0x4941))
    udp.settimeout(5)
    shared.values[rank] = udp.getsockname()[1]
    shared.start.wait()
    words, received, sent, completed = bytes(WORDS_BYTES), bytearray(2000), 0, 0
    end = time.monotonic() + seconds
    while completed < shared.last.value:
        while sent < min(completed + WINDOW, shared.last.value):
            burst = (HEADER.pack(1, 2, 1, rank, 0, 0, 1, sent + i, 0) + words for i in range(SEGMENTS))
            udp.send(b"".join(burst))
            sent += SEGMENTS
        udp.recv_into(received)
        completed += 1
        if rank == 0 and time.monotonic() > end and shared.last.value == NEVER:
            shared.last.value = sent + 2 * WINDOW  # further than any other worker can be
    shared.values[rank] = completed


class Shared:
    """What the workers' processes and this one tell each other."""

    def __init__(self, workers: int) -> None:
        self.values = multiprocessing.Array("l", workers)
        self.last = multiprocessing.Value("l", NEVER)
        self.start = multiprocessing.Event()


@contextmanager
def running(net: Network, folder: Path) -> Iterator[Any]:
    """A switch with p4/inagg.p4 and a shell connected to it; yields the shell's module."""
    import p4runtime_sh.shell as sh

    address = f"unix:{folder}/s.sock"
    command = [sys.executable, "-m", "inagg_switch.cli", "run", str(ROOT / "p4" / "inagg.p4")]
    arguments = [*net.port_arguments, "--grpc", address, "--stats", f"{folder}/stats.json"]
    process = net.start(net.switch, *command, *arguments)
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        sys.exit(process.communicate()[1])
    sh.setup(device_id=1, grpc_addr=address, election_id=(0, 1), verbose=False)
    group = sh.MulticastGroupEntry(1)
    for port in range(1, net.hosts + 1):
        group.add(port, 0)
    group.insert()
    before = cpu_seconds(process.pid)
    yield sh
    (folder / "cpu.json").write_text(str(cpu_seconds(process.pid) - before))
    sh.teardown()
    process.send_signal(signal.SIGTERM)
    process.wait(20)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far; the kernel's part of receiving is charged to it as well."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def full_name(sh: Any, kind: Any, short: str) -> str:
    return next(name for name, _ in sh.context.get_objs(kind) if name.endswith("." + short))


def insert(sh: Any, table: str, action: str, match: dict[str, object], params: dict[str, object]) -> None:
    entry = sh.TableEntry(full_name(sh, sh.P4Type.table, table))(
        action=full_name(sh, sh.P4Type.action, action)
    )
    entry.match.set(**{name: str(value) for name, value in match.items()})
    entry.action.set(**{name: str(value) for name, value in params.items()})
    entry.insert()


def add_job(sh: Any, net: Network, udp_ports: list[int]) -> None:
    insert(sh, "arp_responder", "answer", {"ip": "10.0.0.253"}, {"mac": "02:49:41:00:00:01"})
    group = sh.MulticastGroupEntry(2)
    for rank, udp_port in enumerate(udp_ports):
        number = rank + 1
        group.add(number, number)
        receiver = {"mac": net.mac(number), "ip": net.ip(number), "udp_port": udp_port}
        insert(sh, "receiver", "deliver", {"job": 1, "rank": rank}, receiver)
        admitted = {
            "worker": 1 << rank,
            "all": (1 << len(udp_ports)) - 1,
            "slot_base": 0,
            "slot_mask": 2 * SLOTS - 1,
            "epoch": 1,
            "result_group": 2,
        }
        match = {"port": number, "source": net.ip(number), "job": 1, "rank": rank}
        insert(sh, "admission", "admit", match, admitted)
    group.insert()


def measured(folder: Path, packets: int, seconds: float) -> dict[str, float]:
    """Rate and cost: of `packets` in so many seconds."""
    cpu = float((folder / "cpu.json").read_text())
    return {"pps": packets / seconds, "switch_cpu_us_per_packet": 1e6 * cpu / packets}


def measure_forward(net: Network, seconds: float, folder: Path) -> dict[str, float]:
    """Packets that left the switch."""
    with running(net, folder):
        net.run(net.host(1), f"ping -c 1 {net.ip(2)}")
        started = time.monotonic()
        flood(net, seconds)
        elapsed = time.monotonic() - started
    ports = json.loads((folder / "stats.json").read_text())["ports"]
    return measured(folder, ports[1]["tx_packets"], elapsed)


def measure_aggregate(net: Network, seconds: float, folder: Path) -> dict[str, float]:
    """Packets into the switch, all workers together."""
    shared = Shared(net.hosts)
    processes = [
        multiprocessing.Process(target=worker, args=(net, rank, shared, seconds)) for rank in range(net.hosts)
    ]
    # Before gRPC has threads: a fork would not take them along.
    for process in processes:
        process.start()
    while not all(shared.values):
        time.sleep(0.01)
    with running(net, folder) as sh:
        add_job(sh, net, list(shared.values))
        started = time.monotonic()
        shared.start.set()
        for process in processes:
            process.join()
        elapsed = time.monotonic() - started
    if any(process.exitcode for process in processes):
        sys.exit(
            "a worker waited in vain for a result; the switch says:\n" + (folder / "stats.json").read_text()
        )
    return measured(folder, sum(shared.values), elapsed)


def repeat(name: str, count: int, run: Callable[[Path], dict[str, float]]) -> dict[str, dict[str, float]]:
    """Runs a load so often; median, minimum and maximum of each figure."""
    runs = []
    for _ in range(count):
        with tempfile.TemporaryDirectory() as folder:
            runs.append(run(Path(folder)))
    rows = {}
    for figure in runs[0]:
        values = [one[figure] for one in runs]
        rows[figure] = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    rate, cost = rows["pps"], rows["switch_cpu_us_per_packet"]
    print(
        f"{name:10} {rate['median']:10,.0f} packets/s ({rate['min']:,.0f} to {rate['max']:,.0f}),"
        f" {cost['median']:.2f} us of the switch's CPU a packet",
        flush=True,
    )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"workers {options.workers}, {options.seconds} s, {options.repeat} times, window {WINDOW} chunks")
    net = Network("iswbench", max(2, options.workers))
    try:
        net.create()
        forward = repeat("forward", options.repeat, lambda f: measure_forward(net, options.seconds, f))
        aggregate = repeat("aggregate", options.repeat, lambda f: measure_aggregate(net, options.seconds, f))
    finally:
        net.remove()
    if options.json:
        rows = {"workers": options.workers, "forward": forward, "aggregate": aggregate}
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
