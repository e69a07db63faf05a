# SPDX-License-Identifier: Apache-2.0
"""`inagg decode` on captures that the tests write packet by packet: what it says is what happened."""

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Dot1Q, Ether
from scapy.utils import wrpcap, wrpcapng
from typer.testing import CliRunner

from inagg_simulator import reference
from inagg_simulator.p4_switch import AGGREGATOR, headers, worker
from inagg_wire import decoder
from inagg_wire.captures import Captures
from inagg_wire.cli import app
from inagg_wire.packets import split
from tests.wire.capturing import JOB, Star, answer, contribution, query, result

NO_LOSS = {"contribution": 0, "result": 0, "query": 0, "repeat": 0}


def decode(*words: object) -> Any:
    done = CliRunner().invoke(app, [*map(str, words), "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def told(*words: object) -> str:
    done = CliRunner().invoke(app, list(map(str, words)))
    assert done.exit_code == 0, done.output
    return done.stdout


def refused(*words: object) -> str:
    """The one line on stderr of a command that fails."""
    done = CliRunner().invoke(app, list(map(str, words)))
    assert done.exit_code == 1, done.output
    (line,) = done.stderr.splitlines()
    return line


def context(star: Star) -> None:
    """Chunks to which nothing happens, so the captures show who is where."""
    for chunk in range(4):
        star.sum(100 * chunk, chunk)
    asked = [query(rank, 3, 77 + rank) for rank in range(2)]
    for rank, question in enumerate(asked):
        star.up(390, rank, question)
        star.down(391, rank, answer(question, reference.AGAIN))


def test_the_story_of_a_sum_says_who_was_last_and_when_each_rank_had_it(tmp_path: Path) -> None:
    star = Star()
    context(star)
    star.up(1000, 1, contribution(1, 70))
    star.up(1002.5, 0, contribution(0, 70))
    for rank in range(2):
        star.down(1003 + rank, rank, result(70), to_group=True)
    (story,) = decode(*star.write(tmp_path), "--chunk", 70, "--slots", 16)
    assert (story["job"], story["epoch"], story["chunk"], story["kind"]) == (JOB, 0x01020304, 70, "DATA")
    assert story["slot"] == {"slots": 16, "slot": 6, "version": 0, "index": 6}
    assert [(event["ms"], event["text"], event["seen_at"]) for event in story["events"]] == [
        (
            0,
            "rank 1 (10.0.0.2) sends its contribution to switch (10.0.0.253) (exponent 0, 276 bytes)",
            ["port 2 in"],
        ),
        (
            2.5,
            "rank 0 (10.0.0.1) sends its contribution to switch (10.0.0.253) (exponent 0, 276 bytes)",
            ["port 1 in"],
        ),
        (
            3,
            "switch (10.0.0.253) sends the result to the group (239.192.0.3) (exponent 0, 276 bytes)",
            ["port 1 out", "port 2 out"],
        ),
    ]
    assert story["turns"] == [
        {"aggregator": "switch (10.0.0.253)", "ms": 3, "last": "rank 0 (10.0.0.1)", "last_ms": 2.5, "of": 2}
    ]
    assert {each["member"]: each["ms"] for each in story["received"]} == {
        "rank 1 (10.0.0.2)": 4,
        "rank 0 (10.0.0.1)": 3,
    }
    assert story["lost"] == []


@pytest.mark.parametrize(
    ("chunk", "slots", "slot", "version"),
    [(70, 64, 6, 1), (2**32 - 1, 2, 1, 1), (0, 128, 0, 0), (255, 128, 127, 1)],
)
def test_slot_and_version_are_those_of_the_page(
    chunk: int, slots: int, slot: int, version: int, tmp_path: Path
) -> None:
    star = Star()
    star.sum(0, chunk)
    (story,) = decode(*star.write(tmp_path), "--chunk", chunk, "--slots", slots)
    assert (story["slot"]["slot"], story["slot"]["version"]) == (slot, version)


def lost_contribution(star: Star, at: float = 1000, chunk: int = 70) -> None:
    """Rank 1's contribution comes to the port, and the switch drops it."""
    star.up(at, 0, contribution(0, chunk))
    star.up(at + 1, 1, contribution(1, chunk))
    question = query(1, chunk, 500)
    star.up(at + 20, 1, question)
    star.down(at + 21, 1, answer(question, reference.AGAIN))
    star.up(at + 22, 1, contribution(1, chunk))
    for rank in range(2):
        star.down(at + 23, rank, result(chunk, 1), to_group=True)


def lost_result(star: Star, at: float = 1000, chunk: int = 70) -> None:
    """The result leaves for rank 0 only; rank 1 asks, and gets it when it sends again."""
    star.up(at, 0, contribution(0, chunk))
    star.up(at + 1, 1, contribution(1, chunk))
    star.down(at + 2, 0, result(chunk, 1), to_group=True)
    question = query(1, chunk, 500)
    star.up(at + 20, 1, question)
    star.down(at + 21, 1, answer(question, reference.AGAIN))
    star.up(at + 22, 1, contribution(1, chunk))
    star.down(at + 23, 1, result(chunk, 1))


def test_a_lost_contribution_is_named(tmp_path: Path) -> None:
    star = Star()
    context(star)
    lost_contribution(star)
    paths = star.write(tmp_path)
    (story,) = decode(*paths, "--chunk", 70)
    assert [(loss["what"], loss["member"], loss["ms"]) for loss in story["lost"]] == [
        ("contribution", "10.0.0.2:40001", 1)
    ]
    assert story["lost"][0]["text"] == (
        "the contribution of rank 1 (10.0.0.2) of 1.000: switch (10.0.0.253) lacked it (last seen at port 2 in)"
    )
    assert [event["again"] for event in story["events"]] == [False, False, False, False, True, False]
    assert story["turns"][0]["last"] == "rank 1 (10.0.0.2)"
    assert story["turns"][0]["last_ms"] == 22
    text = told(*paths, "--chunk", 70)
    assert "    21.000  switch (10.0.0.253) answers rank 1 (10.0.0.2): send again, number 0x000001f4" in text
    assert "rank 1 (10.0.0.2) sends its contribution again to switch" in text


def test_a_lost_result_is_named_with_the_port_that_it_never_left(tmp_path: Path) -> None:
    star = Star()
    context(star)
    lost_result(star)
    (story,) = decode(*star.write(tmp_path), "--chunk", 70)
    assert [(loss["what"], loss["member"], loss["ms"]) for loss in story["lost"]] == [
        ("result", "10.0.0.2:40001", 2)
    ]
    assert "(never at port 2 out)" in story["lost"][0]["text"]
    assert {each["member"]: each["ms"] for each in story["received"]} == {
        "rank 0 (10.0.0.1)": 2,
        "rank 1 (10.0.0.2)": 23,
    }
    assert story["turns"][0]["last_ms"] == 1
    assert "sends the result again to rank 1" in story["events"][-1]["text"]


def test_a_result_that_reached_the_port_was_not_lost_before_it(tmp_path: Path) -> None:
    """A rank reads the group's socket after that of answers, so it sends again although the result is there."""
    star = Star()
    context(star)
    lost_result(star)
    star.down(1002, 1, result(70, 1), to_group=True)
    paths = star.write(tmp_path)
    (story,) = decode(*paths, "--chunk", 70)
    assert story["lost"] == []
    assert [(late["member"], late["ms"]) for late in story["late"]] == [("10.0.0.2:40001", 2)]
    text = told(*paths, "--chunk", 70)
    assert (
        "late:    the result of 2.000 came to rank 1 (10.0.0.2) late, which sent again, or was lost behind"
        in text
    )
    (job,) = decode(*paths)["jobs"]
    assert [(member["lost"], member["late"]) for member in job["members"]] == [(NO_LOSS, 0), (NO_LOSS, 1)]


def test_a_packet_that_was_lost_on_a_link_never_came_to_the_port(tmp_path: Path) -> None:
    """h1's own capture and the port's: the first contribution is in one of them."""
    star = Star()
    context(star)
    for chunk in range(4):
        star.put(100 * chunk - 0.1, "h1", bytes(headers(worker(0), AGGREGATOR, 276)) + contribution(0, chunk))
    lost = contribution(0, 70)
    star.put(1000, "h1", headers(worker(0), AGGREGATOR, len(lost)) + lost)
    star.up(1001, 1, contribution(1, 70))
    question = query(0, 70, 5)
    star.put(1010, "h1", headers(worker(0), AGGREGATOR, len(question)) + question)
    star.up(1010.1, 0, question)
    star.down(1010.2, 0, answer(question, reference.AGAIN))
    star.put(1011, "h1", headers(worker(0), AGGREGATOR, len(lost)) + lost)
    star.up(1011.1, 0, lost)
    for rank in range(2):
        star.down(1012, rank, result(70), to_group=True)
    (story,) = decode(*star.write(tmp_path), "--chunk", 70)
    assert [event["seen_at"] for event in story["events"] if event["text"].startswith("rank 0")] == [
        ["h1"],
        ["h1", "port 1 in"],
        ["h1", "port 1 in"],
    ]
    assert story["events"][0]["never_at"] == ["port 1 in"]
    (loss,) = story["lost"]
    assert loss["text"].endswith("(last seen at h1, never at port 1 in)")


def test_a_query_without_an_answer_is_named(tmp_path: Path) -> None:
    star = Star()
    context(star)
    star.up(1000, 0, contribution(0, 70))
    for ms, number in ((1010, 1), (1020, 2)):
        star.up(ms, 0, query(0, 70, number))
    star.down(1021, 0, answer(query(0, 70, 2), 0))
    star.up(1030, 1, contribution(1, 70))
    for rank in range(2):
        star.down(1031, rank, result(70), to_group=True)
    (story,) = decode(*star.write(tmp_path), "--chunk", 70)
    assert [(loss["what"], loss["ms"]) for loss in story["lost"]] == [("query", 10)]
    assert "answers rank 0 (10.0.0.1): held, wait" in " ".join(event["text"] for event in story["events"])


def test_a_contribution_that_comes_twice_without_a_query_is_a_duplicate(tmp_path: Path) -> None:
    star = Star()
    context(star)
    star.up(1000, 0, contribution(0, 70))
    star.up(1000.01, 0, contribution(0, 70))
    star.up(1001, 1, contribution(1, 70))
    for rank in range(2):
        star.down(1002, rank, result(70), to_group=True)
    paths = star.write(tmp_path)
    (story,) = decode(*paths, "--chunk", 70)
    assert story["lost"] == []
    assert "a second time, without having asked" in story["events"][1]["text"]
    (job,) = decode(*paths)["jobs"]
    assert [(member["again"], member["duplicates"]) for member in job["members"]] == [(0, 1), (0, 0)]


def test_captures_without_results_claim_no_loss(tmp_path: Path) -> None:
    """Only what came to the switch: nothing shows whether a result was lost or the contribution."""
    star = Star()
    context(star)
    lost_result(star)
    paths = [path for path in star.write(tmp_path) if path.stem.endswith("_in")]
    (job,) = decode(*paths)["jobs"]
    assert [member["lost"] for member in job["members"]] == [NO_LOSS, NO_LOSS]
    assert [member["again"] for member in job["members"]] == [0, 1]


def written_summary(tmp_path: Path) -> list[Path]:
    star = Star()
    context(star)
    for number in range(10):
        lost_contribution(star, 2000 + 100 * number, 100 + number)
        lost_result(star, 4000 + 100 * number, 200 + number)
    star.sum(9000, 300)
    return star.write(tmp_path)


def check_summary(found: Any) -> None:
    (job,) = found["jobs"]
    assert (job["job"], job["epoch"], job["chunks"]) == (JOB, 0x01020304, 25)
    assert (job["first_chunk"], job["newest_chunk"]) == (0, 300)
    assert job["packets"] == {
        "DATA": 5 * 2 + 20 * 3,
        "DATA query": 22,
        "DATA result": 25 + 10,
        "DATA answer": 22,
    }
    assert job["answers"] == {"again": 22, "held": 0}
    assert job["aggregators"] == ["switch (10.0.0.253)"]
    none, ours = job["members"]
    assert (none["name"], none["contributions"], none["again"], none["lost"]) == (
        "rank 0 (10.0.0.1)",
        25,
        0,
        NO_LOSS,
    )
    assert (ours["name"], ours["contributions"], ours["again"]) == ("rank 1 (10.0.0.2)", 45, 20)
    assert ours["lost"] == NO_LOSS | {"contribution": 10, "result": 10}
    assert (none["last"], ours["last"]) == (0, 25)


def test_the_summary_counts_what_happened(tmp_path: Path) -> None:
    found = decode(*written_summary(tmp_path))
    check_summary(found)
    assert {slow["ms"] for slow in found["jobs"][0]["slowest"]} == {23}
    assert found["places"] == {"port 1 in": 26, "port 1 out": 26, "port 2 in": 66, "port 2 out": 46}
    assert found["notes"] == []


def test_the_summary_is_the_same_with_few_packets_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = written_summary(tmp_path)
    whole = decode(*paths)
    monkeypatch.setattr(decoder, "MOST_SENDINGS", 30)
    few = decoder.Decoder()
    monkeypatch.setattr(few, "finish", lambda: None)
    few.take_all(Captures(paths).frames())
    assert len(few.chunks) < 10
    assert decode(*paths) == whole


def test_the_summary_in_words(tmp_path: Path) -> None:
    lines = told(*written_summary(tmp_path)).splitlines()
    assert lines[0] == "164 frames: port 1 in 26, port 1 out 26, port 2 in 66, port 2 out 46"
    assert lines[2] == (
        "job 3, epoch 0x01020304: 25 chunks from 0 to 300 in 9.002 s, summed by switch (10.0.0.253)"
    )
    assert lines[3] == "packets: DATA 70, DATA query 22, DATA result 35, DATA answer 22"
    (header,) = [line for line in lines if "lost: sent" in line]
    row = lines[lines.index(header) + 2].split()
    assert row == ["rank", "1", "(10.0.0.2)", "45", "20", "0", "21", "10", "10", "0", "0", "0", "25"]


def test_job_selects(tmp_path: Path) -> None:
    paths = written_summary(tmp_path)
    assert decode(*paths, "--job", JOB)["jobs"]
    assert decode(*paths, "--job", JOB + 1)["jobs"] == []
    assert (
        refused(*paths, "--chunk", 0, "--job", 4) == "inagg: no packet of chunk 0 of job 4 in these captures"
    )


def test_folders_name_the_switches(tmp_path: Path) -> None:
    star = Star()
    star.sum(0, 5)
    paths = star.write(tmp_path / "leaf1")
    other = Star()
    other.put(0, "port9_in", bytes(Ether(dst="02:00:00:00:00:09") / IP() / UDP() / b"other"))
    paths += other.write(tmp_path / "root")
    (story,) = decode(*paths, "--chunk", 5)
    assert story["turns"][0]["aggregator"] == "leaf1 (10.0.0.253)"
    assert story["events"][0]["seen_at"] == ["leaf1 port 1 in"]


def test_interfaces_of_pcapng_are_places(tmp_path: Path) -> None:
    path = tmp_path / "any.pcapng"
    whole = contribution(0, 5)
    frame = Ether(headers(worker(0), AGGREGATOR, len(whole)) + whole)
    frame.sniffed_on = "ia-k3x9fa-h1"
    frame.time = 1000
    wrpcapng(str(path), [frame])
    (story,) = decode(path, "--chunk", 5)
    assert story["events"][0]["seen_at"] == ["ia-k3x9fa-h1"]
    assert story["began_s"] == 1000


@pytest.mark.parametrize("words", [1, 4, 5, 32])
@pytest.mark.parametrize("tail", [None, reference.EXPONENT, reference.DATA | reference.QUERY])
def test_messages_are_split_into_their_packets(words: int, tail: int | None, tmp_path: Path) -> None:
    chunks = range(100, 100 + min(62, 60_000 // (20 + 256 * words)))
    message = b"".join(contribution(0, chunk, words=words) for chunk in chunks)
    last = [] if tail is None else [contribution(0, chunks[-1] + 1, kind=tail)]
    message += b"".join(last)
    frame = headers(worker(0), AGGREGATOR, len(message)) + message
    path = tmp_path / "h1.pcap"
    wrpcap(str(path), [Ether(frame)])
    (job,) = decode(path)["jobs"]
    assert sum(job["packets"].values()) == len(chunks) + len(last)
    assert (job["first_chunk"], job["newest_chunk"]) == (chunks[0], chunks[-1] + len(last))
    (story,) = decode(path, "--chunk", chunks[1])
    assert story["events"][0]["length"] == 20 + 256 * words


def test_messages_of_packets_without_words_and_of_packets_with_bits_are_split() -> None:
    exponents = b"".join(contribution(1, chunk, kind=reference.EXPONENT) for chunk in range(7))
    assert split(exponents, 140, ()) == [(20 * at, 20) for at in range(7)]
    passed = b"".join(
        whole[:20] + bytes(8) + whole[20:]
        for whole in (contribution(1, chunk, words=4) for chunk in range(3))
    )
    assert split(passed, len(passed), ()) == [(1052 * at, 1052) for at in range(3)]


def test_a_cut_message_is_split_only_where_the_length_of_its_packets_is_known() -> None:
    message = b"".join(contribution(0, chunk, words=4) for chunk in range(3))
    assert split(message[:96], len(message), ()) == []
    assert split(message[:96], len(message), {1044}) == [(0, 1044), (1044, 1044), (2088, 1044)]
    assert split(message[:1100], len(message), ()) == [(0, 1044), (1044, 1044), (2088, 1044)]


def test_a_snaplen_that_leaves_the_headers_changes_nothing(tmp_path: Path) -> None:
    star = Star()
    context(star)
    lost_result(star)
    whole = decode(*star.write(tmp_path / "whole"))
    for frames in star.frames.values():
        for at, frame in enumerate(frames):
            frames[at] = Ether(bytes(frame)[:64])
            frames[at].time, frames[at].wirelen = frame.time, len(frame)
    assert decode(*star.write(tmp_path / "cut")) == whole


def test_a_snaplen_that_cuts_the_header_is_counted(tmp_path: Path) -> None:
    whole = contribution(0, 5)
    frame = Ether((headers(worker(0), AGGREGATOR, len(whole)) + whole)[:54])
    frame.wirelen = 42 + len(whole)
    path = tmp_path / "h1.pcap"
    wrpcap(str(path), [frame])
    found = decode(path)
    assert (found["cut_frames"], found["malformed"], found["jobs"]) == (1, {}, [])


def test_vlan_tags_are_skipped_and_other_traffic_counts(tmp_path: Path) -> None:
    whole = contribution(0, 5)
    inner = IP(headers(worker(0), AGGREGATOR, len(whole))[14:] + whole)
    frames = [
        Ether() / Dot1Q(vlan=7) / Dot1Q(vlan=8) / inner,
        Ether() / IP(frag=3) / bytes(100),
        Ether() / IP() / UDP(sport=1, dport=53) / b"a question",
        Ether(type=0x0806) / bytes(28),
        Ether() / IP() / UDP(sport=1, dport=18753) / b"to the port, but no packet",
    ]
    path = tmp_path / "h1.pcap"
    wrpcap(str(path), [Ether(bytes(frame)) for frame in frames])
    found = decode(path)
    assert found["other_frames"] == 3
    assert found["malformed"] == {"version 7, not 4": 1}
    assert found["jobs"][0]["packets"] == {"DATA": 1}


def test_packets_with_wrong_check_fields_are_told_and_count_for_nothing(tmp_path: Path) -> None:
    star = Star()
    context(star)
    damaged = bytearray(contribution(1, 70))
    damaged[7] ^= 1
    star.up(999, 1, bytes(damaged))
    star.sum(1000, 70)
    paths = star.write(tmp_path)
    (story,) = decode(*paths, "--chunk", 70)
    assert "check fields do not match, so it is dropped" in story["events"][0]["text"]
    assert story["lost"] == []
    assert decode(*paths)["jobs"][0]["damaged"] == 1


def test_a_job_on_servers_is_recognised_at_any_port(tmp_path: Path) -> None:
    server = worker(5)._replace(udp_port=45000)
    frames = []
    for ms, source, target, datagram in (
        (0, worker(0), server, contribution(0, 9)),
        (1, worker(1), server, contribution(1, 9)),
        (2, server, worker(0), result(9, 1)),
        (3, server, worker(1), result(9, 1)),
    ):
        frames.append(Ether(headers(source, target, len(datagram)) + datagram))
        frames[-1].time = ms / 1000
    path = tmp_path / "bridge.pcap"
    wrpcap(str(path), frames)
    (story,) = decode(path, "--chunk", 9)
    assert story["turns"] == [
        {"aggregator": "server 10.0.0.6:45000", "ms": 2, "last": "rank 1 (10.0.0.2)", "last_ms": 1, "of": 2}
    ]
    assert {each["member"]: each["ms"] for each in story["received"]} == {
        "rank 0 (10.0.0.1)": 2,
        "rank 1 (10.0.0.2)": 3,
    }


def test_a_file_that_ends_within_a_frame_is_read_to_there(tmp_path: Path) -> None:
    star = Star()
    star.sum(0, 5)
    path, *_ = star.write(tmp_path)
    path.write_bytes(path.read_bytes()[:-10])
    done = CliRunner().invoke(app, [str(path)])
    assert done.exit_code == 0
    assert done.stderr == f"inagg: {path}: the file ends within a frame\n"


def test_a_pcapng_file_that_ends_within_a_frame_is_read_to_there(tmp_path: Path) -> None:
    path = tmp_path / "h1.pcapng"
    frames = [Ether(headers(worker(0), AGGREGATOR, 276) + contribution(0, chunk)) for chunk in (5, 6)]
    wrpcapng(str(path), frames)
    path.write_bytes(path.read_bytes()[:-10])
    done = CliRunner().invoke(app, [str(path), "--json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout)["jobs"][0]["chunks"] == 1
    assert str(path) in done.stderr


def test_files_that_are_no_captures_are_refused(tmp_path: Path) -> None:
    text, empty = tmp_path / "a.txt", tmp_path / "empty.pcap"
    text.write_text("no capture at all, but a text")
    empty.write_bytes(b"")
    assert refused(text).startswith(f"inagg: {text}: not a pcap or pcapng file")
    assert refused(empty).startswith(f"inagg: {empty}: not a pcap or pcapng file")
    assert (
        refused(tmp_path / "none.pcap")
        == f"inagg: cannot read {tmp_path / 'none.pcap'}: No such file or directory"
    )
    wlan = tmp_path / "wlan.pcap"
    header = struct.pack("=IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 105)
    wlan.write_bytes(header + struct.pack("=IIII", 0, 0, 1, 1) + b"a")
    assert refused(wlan) == f"inagg: {wlan}: link type 105; want Ethernet, cooked or raw IPv4"


def test_slots_are_a_power_of_two(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, [str(tmp_path), "--chunk", "1", "--slots", "12"])
    assert done.exit_code == 2
    assert "must be a power of two" in done.stderr


def test_the_command_reads_no_more_than_its_own_extra() -> None:
    """It starts without torch, Mininet and gRPC."""
    script = "import sys; import inagg_wire.story, inagg_wire.summary, inagg_wire.cli; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {"torch", "mininet", "grpc", "fastapi", "numpy"} & set(done.stdout.split())


def test_inagg_decode_is_a_command_and_says_where_the_dissector_is(tmp_path: Path) -> None:
    command = shutil.which("inagg", path=str(Path(sys.executable).parent))
    assert command is not None
    done = subprocess.run([command, "decode", "--dissector"], capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).read_text().startswith("-- SPDX-License-Identifier")
    star = Star()
    star.sum(0, 5)
    done = subprocess.run(
        [command, "decode", *star.write(tmp_path), "--chunk", "5"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("chunk 5 of job 3, epoch 0x01020304: DATA; ")
