# SPDX-License-Identifier: Apache-2.0
"""Packets a second through a running switch: hosts in network namespaces -> switch -> hosts.

    sudo .venv/bin/python -m tests.bench.ports [--workers 4] [--seconds 3] [--repeat 5]
        [--switch model] [--switch plain] [--switch bmv2] [--json FILE]

There are two loads. In both, one system call of a host sends or receives many packets (UDP_SEGMENT, UDP_GRO):
  forward    host 1 sends 1 KiB datagrams to host 2 as fast as it can; packets that leave the switch are counted
  aggregate  N workers send DATA contributions (WORDS=4) with a window of chunks in flight, and wait for results
The switches are measured in turn:
  model  inagg-switch, with offloads: it receives and sends frames of up to 64 KiB
  plain  inagg-switch --no-offloads: the hosts' kernels segment the packets, and each packet is one frame
  bmv2   simple_switch_grpc and p4c-bm2-ss, if both are on PATH; its queues hold 64 packets, so the window is small
The output has the median, minimum and maximum over the repetitions, and for aggregation the ratio to the last switch.
"""

import argparse
import ctypes
import json
import multiprocessing
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests import INAGG_P4
from tests.bmv2_commands import bmv2_command
from tests.switch.network import Network

UDP_SEGMENT, UDP_GRO = 103, 104
SLOTS = 1024
HEADER = struct.Struct("!BBHHHIII")
WORDS_BYTES = 1024
NEVER = 2**40


@dataclass(frozen=True)
class Setting:
    """A kind of switch. `segments`: packets a system call. `window`: chunks in flight, a multiple of `segments`."""

    name: str
    offloads: bool
    segments: int
    window: int


SETTINGS = {
    one.name: one
    for one in (
        Setting("model", True, 60, 960),
        Setting("plain", False, 60, 960),
        Setting("bmv2", False, 8, 32),
    )
}


def flood(net: Network, setting: Setting, seconds: float) -> int:
    """Sends from host 1 to a socket of host 2 that nobody reads; returns the number of datagrams sent."""
    with net.inside(net.host(2)):
        sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sink.setsockopt(socket.SOL_UDP, UDP_GRO, 1)
    sink.bind((net.ip(2), 9))
    with net.inside(net.host(1)):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.setsockopt(socket.SOL_UDP, UDP_SEGMENT, WORDS_BYTES)
    sender.connect((net.ip(2), 9))
    burst, sent, end = bytes(WORDS_BYTES * setting.segments), 0, time.monotonic() + seconds
    with sender, sink:
        while time.monotonic() < end:
            sender.send(burst)
            sent += setting.segments
    return sent


def worker(net: Network, setting: Setting, rank: int, shared: "Shared", seconds: float) -> None:
    """A worker's process: keeps a window of chunks in flight for `seconds`. It writes its UDP port to `shared.values`,
    at the end its number of chunks."""
    with net.inside(net.host(rank + 1)):
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.bind((net.ip(rank + 1), 0))
    size = HEADER.size + WORDS_BYTES
    udp.setsockopt(socket.SOL_UDP, UDP_SEGMENT, size)
    udp.setsockopt(socket.SOL_UDP, UDP_GRO, 1)
    udp.setsockopt(socket.SOL_SOCKET, 33, 16 << 20)  # SO_RCVBUFFORCE
    udp.connect(("10.0.0.253", 0x4941))
    udp.settimeout(5)
    shared.values[rank] = udp.getsockname()[1]
    burst = np.zeros((setting.segments, size), np.uint8)
    burst[:, : HEADER.size] = np.frombuffer(HEADER.pack(0x42, rank, 1, 0, 341, 1, 0, 0), np.uint8)
    chunks = burst[:, 12:16].view(">u4")[:, 0]
    chunks[:] = range(setting.segments)
    received, sent, completed = bytearray(70000), 0, 0
    shared.start.wait()
    end = time.monotonic() + seconds
    while completed < shared.last.value:
        while sent + setting.segments <= min(completed + setting.window, shared.last.value):
            udp.send(burst.data)
            chunks += setting.segments
            sent += setting.segments
        completed += udp.recv_into(received) // size
        if rank == 0 and time.monotonic() > end and shared.last.value == NEVER:
            shared.last.value = sent + 2 * setting.window  # no other worker can be further
    shared.values[rank] = completed


class Shared:
    """The memory that the workers' processes share with this one: a value of each worker, and the last chunk."""

    def __init__(self, workers: int) -> None:
        self.values = multiprocessing.Array(ctypes.c_long, workers)
        self.last = multiprocessing.Value("l", NEVER, lock=False)
        self.start = multiprocessing.Event()


def bmv2_config(folder: Path) -> list[str]:
    """Compiles p4/inagg.p4 for BMv2; returns the paths of the P4Info and of the device config."""
    files = [str(folder / "p4info.txtpb"), str(folder / "inagg.json")]
    command = [
        "p4c-bm2-ss",
        "--arch",
        "v1model",
        "--p4runtime-files",
        files[0],
        "-o",
        files[1],
        str(INAGG_P4),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return files


@contextmanager
def running(net: Network, folder: Path, setting: Setting) -> Iterator[Any]:
    """A switch with p4/inagg.p4 and a shell connected to it; yields the shell's module."""
    import p4runtime_sh.shell as sh

    address = f"unix:{folder}/s.sock"
    config = None
    if setting.name == "bmv2":
        config = sh.FwdPipeConfig(*bmv2_config(folder))
        ports = [word for n in range(1, net.hosts + 1) for word in ("-i", f"{n}@{net.port_interface(n)}")]
        command = ["simple_switch_grpc", "--no-p4", "--device-id", "1", *ports, "--"]
        process = net.start(net.switch, *command, "--grpc-server-addr", address)
        while not Path(f"{folder}/s.sock").exists() and process.poll() is None:
            time.sleep(0.01)
    else:
        command = [sys.executable, "-m", "inagg_switch.cli", "run", str(INAGG_P4), *net.port_arguments]
        option = "--offloads" if setting.offloads else "--no-offloads"
        arguments = ["--grpc", address, "--stats", f"{folder}/stats.json", option]
        process = net.start(net.switch, *command, *arguments)
        assert process.stdout is not None
        process.stdout.readline()
    if process.poll() is not None:
        sys.exit(process.communicate()[1])
    sh.setup(device_id=1, grpc_addr=address, election_id=(0, 1), config=config, verbose=False)
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
    """CPU time, so far, of the model's packet loop or of all BMv2's threads. It includes the kernel's work on received
    packets."""
    tasks = list(Path(f"/proc/{pid}/task").iterdir())
    moving = [task for task in tasks if (task / "comm").read_text() == "inagg-ports\n"]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in moving or tasks) / 1e9


def full_name(sh: Any, kind: Any, short: str) -> str:
    names: list[str] = [name for name, _ in sh.context.get_objs(kind)]
    return next(name for name in names if name.endswith("." + short))


def insert(
    sh: Any, table: str, action: str, match: Mapping[str, object], params: Mapping[str, object]
) -> None:
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
            "member": 1 << rank,
            "all": (1 << len(udp_ports)) - 1,
            "slot_base": 0,
            "slot_mask": 2 * SLOTS - 1,
            "epoch": 1,
            "result_group": 2,
            "parents": 0,
            "first_chunk": 0,
            "run_bits": 0,
        }
        match = {"port": number, "source": net.ip(number), "job": 1, "rank": rank}
        insert(sh, "admission", "admit", match, admitted)
    group.insert()


def measured(folder: Path, packets: int, seconds: float) -> dict[str, float]:
    """The rate of `packets` in `seconds`, and the switch's CPU time for each."""
    cpu = float((folder / "cpu.json").read_text())
    return {"pps": packets / seconds, "switch_cpu_us_per_packet": 1e6 * cpu / packets}


def measure_forward(net: Network, seconds: float, setting: Setting, folder: Path) -> dict[str, float]:
    """Packets that reached host 2. They are computed from its interface's bytes: a large frame is many packets."""
    with running(net, folder, setting):
        net.run(net.host(1), f"ping -c 1 {net.ip(2)}")
        started, before = time.monotonic(), received_bytes(net)
        flood(net, setting, seconds)
        elapsed, got = time.monotonic() - started, received_bytes(net) - before
    return measured(folder, got // (WORDS_BYTES + 42 if not setting.offloads else WORDS_BYTES), elapsed)


def received_bytes(net: Network) -> int:
    links = json.loads(net.run(net.host(2), "ip -j -s link show eth0"))
    return int(links[0]["stats64"]["rx"]["bytes"])


def measure_aggregate(net: Network, seconds: float, setting: Setting, folder: Path) -> dict[str, float]:
    """Packets from all workers into the switch."""
    shared = Shared(net.hosts)
    processes = [
        multiprocessing.Process(target=worker, args=(net, setting, rank, shared, seconds))
        for rank in range(net.hosts)
    ]
    # Before gRPC starts threads, which a fork would not have.
    for process in processes:
        process.start()
    while not all(shared.values[:]):
        time.sleep(0.01)
    with running(net, folder, setting) as sh:
        add_job(sh, net, shared.values[:])
        started = time.monotonic()
        shared.start.set()
        for process in processes:
            process.join()
        elapsed = time.monotonic() - started
    if any(process.exitcode for process in processes):
        stats = folder / "stats.json"
        sys.exit(
            f"{setting.name}: a worker received no result for 5 s"
            + (f"; the switch's statistics:\n{stats.read_text()}" if stats.exists() else "")
        )
    return measured(folder, sum(shared.values[:]), elapsed)


def repeat(name: str, count: int, run: Callable[[Path], dict[str, float]]) -> dict[str, dict[str, float]]:
    """Runs a load `count` times; returns median, minimum and maximum of each figure."""
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
        f"{name:16} {rate['median']:10,.0f} packets/s ({rate['min']:,.0f} to {rate['max']:,.0f}),"
        f" {cost['median']:.2f} us of the switch's CPU a packet",
        flush=True,
    )
    return rows


def chosen(names: list[str]) -> list[Setting]:
    """The settings with these names. Prints that BMv2 is skipped if it is not installed."""
    missing = [tool for tool in ("p4c-bm2-ss", "simple_switch_grpc") if bmv2_command(tool) is None]
    if "bmv2" in names and missing:
        print(f"bmv2: skipped, {' and '.join(missing)} not on PATH")
        names = [name for name in names if name != "bmv2"]
    return [SETTINGS[name] for name in names]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--switch", action="append", choices=list(SETTINGS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    settings = chosen(options.switch or list(SETTINGS))
    print(f"workers {options.workers}, {options.seconds} s, {options.repeat} times")
    net = Network("iswbench", max(2, options.workers))
    rows: dict[str, Any] = {}
    try:
        net.create()
        for setting in settings:
            for number in range(1, net.hosts + 1):
                net.set_offloads(number, setting.offloads)
            for load in (measure_forward, measure_aggregate):
                run = partial(load, net, options.seconds, setting)
                name = load.__name__.removeprefix("measure_")
                found = repeat(f"{name} {setting.name}", options.repeat, run)
                rows.setdefault(setting.name, {"setting": asdict(setting)})[name] = found
    finally:
        net.remove()
    last = rows[settings[-1].name]["aggregate"]["pps"]["median"]
    for setting in settings[:-1]:
        ratio = rows[setting.name]["aggregate"]["pps"]["median"] / last
        print(f"aggregate: {setting.name} at {ratio:.1f} times the packets of {settings[-1].name}")
    if options.json:
        options.json.write_text(json.dumps({"workers": options.workers, "switches": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
