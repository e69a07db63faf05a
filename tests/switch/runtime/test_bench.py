# SPDX-License-Identifier: Apache-2.0
"""`inagg-switch bench`: its load and its counts. Its times are not tested."""

import json
import struct
import subprocess
from pathlib import Path

import pytest

from inagg_switch import Switch
from inagg_switch.bench import BenchError, measure, minimum_frame, parse_frame, read_load, read_pcap
from inagg_switch.vectors.format import VectorError
from tests import INAGG_P4
from tests.bench import switch_load
from tests.switch.inagg.packets import read_result

RATE = (
    "packets",
    "runs",
    "threads",
    "sent_per_packet",
    "ns_per_packet",
    "ns_slowest",
    "ns_fastest",
    "packets_per_second",
)


def bench(command: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    few = ("--packets", "1000", "--runs", "2")
    return subprocess.run(
        [*command, "bench", str(INAGG_P4), *few, *arguments], capture_output=True, text=True, timeout=120
    )


def figures(command: list[str], *arguments: str) -> dict[str, float]:
    done = bench(command, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = json.loads(done.stdout)
    assert tuple(found) == RATE
    assert found["ns_fastest"] <= found["ns_per_packet"] <= found["ns_slowest"]
    return found


FOUR_WORKERS = INAGG_P4.parent / "bench" / "four_workers.vectors"


@pytest.mark.parametrize("workers", [1, 4, 64])
def test_every_worker_gets_every_sum(switch_command: list[str], tmp_path: Path, workers: int) -> None:
    path = tmp_path / "workers.vectors"
    path.write_text("\n".join(switch_load.load(workers)))
    found = figures(switch_command, "--load", str(path))
    assert found["sent_per_packet"] == 1
    load = 62 * workers
    assert found["packets"] == max(1, 1000 // load) * load


def test_the_table_names_the_rate(switch_command: list[str]) -> None:
    lines = bench(switch_command, "--load", str(FOUR_WORKERS)).stdout.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["packets", "threads", "packets/s", "ns a packet"]


def test_a_load_may_be_named_from_the_folder_of_the_program(switch_command: list[str]) -> None:
    assert not Path("bench").exists()
    assert figures(switch_command, "--load", "bench/four_workers.vectors")["sent_per_packet"] == 1


def test_the_load_follows_the_protocol() -> None:
    with Switch.from_p4(INAGG_P4) as program:
        load = read_load(program, FOUR_WORKERS)
        first_of_each = load.packets[:: load.run]
        results = [read_result(frame) for one in first_of_each for _, frame in program.process(*one)]
    assert [one.inagg.rank for one in results] == [3] * 4
    assert results[0].inagg.checksum == (1 + 2 + 3 + 4) * 256
    assert results[0].words == [int.from_bytes(b"\0\0\0\x0a" * 64, "big")] * 4


def test_the_load_is_that_of_its_generator() -> None:
    assert FOUR_WORKERS.read_text().splitlines() == list(switch_load.load(4))


def test_the_packets_of_a_load_without_runs_come_once_in_a_pass(small: Switch, tmp_path: Path) -> None:
    path = tmp_path / "load.vectors"
    path.write_text("packet 1 00ff\npacket 2 01ff\n")
    load = read_load(small, path)
    assert (load.packets, load.counter_offset) == ([(1, b"\x00\xff"), (2, b"\x01\xff")], None)


def test_each_packet_of_a_load_with_runs_comes_several_times(small: Switch, tmp_path: Path) -> None:
    path = tmp_path / "load.vectors"
    path.write_text("bench 1 2\npacket 1 0000000000\npacket 2 0100000000\n")
    load = read_load(small, path)
    assert [port for port, _ in load.packets] == [1, 1, 2, 2]
    assert (load.counter_offset, load.run) == (1, 2)


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("bench 54 62", BenchError, "there is no packet"),
        ("packet 1 00000000\nbench 1 2", VectorError, ":1: the frame has no 4 bytes at 1"),
        ("bench 0 0", VectorError, ":1: a run has one packet at least"),
        ("bench 0 1\nbench 0 1", VectorError, ":2: bench is given twice"),
        ("insert nothing k=1 go()\npacket 1 00", VectorError, ":1: "),
    ],
)
def test_a_wrong_load_is_explained(
    small: Switch, tmp_path: Path, text: str, error: type[Exception], words: str
) -> None:
    path = tmp_path / "load.vectors"
    path.write_text(text)
    with pytest.raises(error, match=words):
        read_load(small, path)


def test_the_line_of_a_wrong_load_is_named(switch_command: list[str], tmp_path: Path) -> None:
    path = tmp_path / "load.vectors"
    path.write_text("packet 1 00\ngo\n")
    done = bench(switch_command, "--load", str(path))
    assert done.returncode == 2
    assert done.stderr.startswith(f"{path}:2: unknown command go;")


def test_given_packets_are_processed_with_the_given_entries(
    switch_command: list[str], tmp_path: Path
) -> None:
    entries = {"multicast": {"1": [[1, 0], [2, 0], [3, 0]]}}
    path = tmp_path / "entries.json"
    path.write_text(json.dumps(entries))
    frame = "ff" * 6 + "020000000001" + "88b5"
    found = figures(switch_command, "--entries", str(path), "--frame", f"1:{frame}")
    assert found["sent_per_packet"] == 2  # flooded to the two other ports
    answer = {"table": "arp_responder", "match": {"ip": 1}, "action": "answer", "params": {"mac": 2}}
    path.write_text(json.dumps({"entries": [answer]}))
    arp = (
        "ffffffffffff0200000000010806"
        + "0001080006040001"
        + "020000000001"
        + "00000000" * 1
        + "00" * 6
        + "00000001"
    )
    assert figures(switch_command, "--entries", str(path), "--frame", f"1:{arp}")["sent_per_packet"] == 1


@pytest.mark.parametrize("order", ["<", ">"])
def test_packets_of_a_capture_file(switch_command: list[str], tmp_path: Path, order: str) -> None:
    path = tmp_path / "one.pcap"
    frames = [b"\xff" * 12 + b"\x88\xb5", b"\xff" * 12 + b"\x88\xb5more"]
    data = struct.pack(order + "IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)
    for frame in frames:
        data += struct.pack(order + "IIII", 0, 0, len(frame), len(frame)) + frame
    path.write_bytes(data)
    assert read_pcap(path, 3) == [(3, frame) for frame in frames]
    assert figures(switch_command, "--pcap", f"3@{path}")["packets"] == 1000
    path.write_bytes(data[:-1])
    with pytest.raises(BenchError, match="cut short"):
        read_pcap(path, 3)


def test_the_default_load_is_minimum_frames(switch_command: list[str], inagg: Switch) -> None:
    assert [len(frame) for _, frame in minimum_frame().packets] == [60]
    assert measure(inagg, minimum_frame(), packets=10, runs=1).packets == 10
    assert figures(switch_command)["packets"] == 1000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--frame", "x"], "PORT:HEX"),
        (["--frame", "0:ff"], "PORT:HEX"),
        (["--frame", "1:f"], "frame '1:f'"),
        (["--frame", "1:"], "empty"),
        (["--pcap", "1@nothere"], "nothere: No such file"),
        (["--entries", "nothere"], "nothere: No such file"),
        (["--load", "nothere"], "nothere: No such file"),
        (["--load", str(FOUR_WORKERS), "--frame", "1:ff"], "--load has its own packets"),
    ],
)
def test_bad_arguments_are_explained(switch_command: list[str], arguments: list[str], words: str) -> None:
    done = bench(switch_command, *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_entries_with_unknown_keys_are_refused(switch_command: list[str], tmp_path: Path) -> None:
    path = tmp_path / "entries.json"
    for text, key in (('{"entires": []}', "entires"), ('{"entries": [{"tabel": "t"}]}', "tabel")):
        path.write_text(text)
        done = bench(switch_command, "--entries", str(path))
        assert done.returncode == 2
        assert f"{path}: unknown key '{key}'" in done.stderr


def test_a_file_without_entries_is_explained(switch_command: list[str], tmp_path: Path) -> None:
    path = tmp_path / "entries.json"
    for text in ("{", "[]", '{"entries": [{}]}', '{"multicast": {"x": []}}'):
        path.write_text(text)
        done = bench(switch_command, "--entries", str(path))
        assert done.returncode == 2
        assert f"{path}: not a list of entries" in done.stderr


def test_a_frame_is_a_port_and_its_bytes() -> None:
    assert parse_frame("510:00ff") == (510, b"\x00\xff")


def test_a_load_for_other_definitions_is_no_rate(switch_command: list[str]) -> None:
    done = bench(switch_command, "-D", "WORDS=8", "--load", str(FOUR_WORKERS))
    assert done.returncode != 0
    assert (
        "the program sends nothing, though the load expects it to: is the load for other -D?" in done.stderr
    )
