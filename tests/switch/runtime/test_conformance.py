# SPDX-License-Identifier: Apache-2.0
"""Small P4 programs with packet vectors (programs/*), run with the model, and with BMv2 where it is installed.

The model and BMv2 give the same frames.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from inagg_switch import Switch
from inagg_switch.vectors.format import VectorError, Vectors, read_vectors
from inagg_switch.vectors.run import failures, lines_of
from tests.switch import PROGRAMS, bmv2
from tests.switch.bmv2_vectors import run_bmv2

P4_FILES = sorted(PROGRAMS.glob("*.p4"))


def vectors_of(program: Path) -> Vectors:
    return read_vectors(program.with_suffix(".vectors"))


@pytest.mark.parametrize("program", P4_FILES, ids=lambda p: p.stem)
def test_on_the_model(program: Path) -> None:
    with Switch.from_p4(program) as switch:
        assert list(failures(switch, vectors_of(program))) == []


@pytest.mark.bmv2
@pytest.mark.skipif(not bmv2.available(), reason="p4c, simple_switch or libnanomsg is missing")
@pytest.mark.parametrize("program", P4_FILES, ids=lambda p: p.stem)
def test_on_bmv2(program: Path) -> None:
    vectors = vectors_of(program)
    # Each port of BMv2 has a thread, so the copies of one packet leave in any order.
    for packet, out in zip(vectors.packets, run_bmv2(program, vectors), strict=True):
        assert sorted(out) == sorted(packet.expected), f"{program.stem}.vectors:{packet.line}"


# --- the format of vectors, and the command that runs them


def test_the_command_reports_packets_that_differ_from_the_vectors(
    switch_command: list[str], tmp_path: Path
) -> None:
    program = PROGRAMS / "state.p4"
    lines = program.with_suffix(".vectors").read_text().splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith("expect 1 "))
    lines[place] = "expect 2 00"
    (tmp_path / "wrong.vectors").write_text("\n".join(lines))
    command = [*switch_command, "test", str(program), str(program.with_suffix(".vectors"))]
    right = subprocess.run(command, capture_output=True, text=True, check=False)
    assert right.returncode == 0
    assert right.stdout.endswith(" packets, 0 wrong\n")
    done = subprocess.run(
        [*command, str(tmp_path / "wrong.vectors")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert f"wrong.vectors:{place}: expected 2:00, got 1:" in done.stdout


def test_the_command_prints_the_path_of_a_packet_that_went_wrong(
    switch_command: list[str], tmp_path: Path
) -> None:
    vectors = tmp_path / "v"
    vectors.write_text("packet 1 09cb5501\nexpect 2 00\npacket 1 09cb5501\nexpect 2 09cb55010000000000\n")
    command = [*switch_command, "test", str(PROGRAMS / "selectors.p4"), str(vectors)]
    plain = subprocess.run(command, capture_output=True, text=True, check=False)
    traced = subprocess.run([*command, "--trace"], capture_output=True, text=True, check=False)
    assert (plain.returncode, traced.returncode) == (1, 1)
    wrong, *path, summary = traced.stdout.splitlines()
    assert [wrong, summary] == plain.stdout.splitlines()
    assert wrong.startswith(f"{vectors}:1: expected 2:00, got ")
    assert path[0] == "    packet of 4 bytes received on port 1"
    assert all(line.startswith("    ") for line in path)
    assert sum(" received on port " in line for line in path) == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("packet", "too few words after packet"),
        ("packet one 00", "expected a number, decimal or hexadecimal, not one"),
        ("packet -1 00", "-1 is negative"),
        ("packet 600 00", "port 600 is out of range, expected 0 to 511"),
        ("packet 1 00\nexpect 999999 00", "port 999999 is out of range, expected 0 to 511"),
        ("packet 1 0g", "a frame must be hexadecimal, without `g`"),
        ("packet 1 000", "a frame must be whole bytes, not 3 hexadecimal digits"),
        ("expect 1 00", "expect without a packet before it"),
        ("insert t 5 a()", "expected KEY=VALUE without blanks, not 5"),
        ("insert t a=1", "expected KEY=VALUE ..."),
        ("insert t a=x b()", "expected a number, decimal or hexadecimal, not x"),
        ("insert t a=1 a=2 b()", "key a is given twice"),
        ("insert t a=1 b(c=1, c=2)", "parameter c is given twice"),
        ("insert t a=1 b(2)", "expected PARAM=VALUE, not 2"),
        ("insert t a=1 b() 3", "expected priority=N at the end, not 3"),
        ("insert t a=1 b() priority=3 4", "expected priority=N at the end, not priority=3 4"),
        ("insert t a=1 _member(x=1)", "expected _member(id=NUMBER)"),
        ("counter c 0", "too few words after counter"),
        ("register r 1 0 7", "too many words after register"),
        ("value_set v", "too few words after value_set"),
        ("value_set v a=1 a=2", "field a is given twice"),
        ("group 1 2", "expected PORT:RID, not 2"),
        ("digest d x=1", "digest without a packet before it"),
        ("packet 1 00\ndigest d x", "expected FIELD=VALUE, not x"),
        ("go 1", "unknown command go; there are: insert, default"),
    ],
)
def test_a_malformed_line_is_reported(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "v").write_text(f"# nothing\n{line}\n")
    number = 2 + line.count("\n")
    with pytest.raises(VectorError, match=re.escape(f"{tmp_path}/v:{number}: {message}")):
        read_vectors(tmp_path / "v")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("insert nothing a=1 b()", "no table `nothing`"),
        ("insert single hdr.ask.what=0x100 _member(id=0)", "does not fit bit<8>"),
        ("insert single hdr.ask.what=1 _member(id=7)", "does not exist|not there|no member"),
        ("insert single hdr.ask.what=1 pass()", "give a Member or a Group"),
        ("members spread 0 9", "spread"),
        ("meter rates 9 0 1 0 1", "9"),
        ("value_set nothing 1", "no value set `nothing`"),
        ("default measured measure(x=1)", "x"),
        ("group 0 1:1", "group 0"),
        ("counter nothing 0 1 1", "no counter `nothing`"),
        ("direct_counter measured 3 1 1", "no insert 3"),
        ("packet 1 00\ndigest nothing a=1", "no digest `nothing`"),
    ],
)
def test_a_line_that_the_program_refuses_is_reported(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "v").write_text(f"# nothing\n{line}\n")
    with (
        Switch.from_p4(PROGRAMS / "selectors.p4") as switch,
        pytest.raises(VectorError, match=f"{tmp_path}/v:2: .*({message})"),
    ):
        list(failures(switch, read_vectors(tmp_path / "v")))


def test_all_malformed_lines_are_reported_up_to_twenty(tmp_path: Path) -> None:
    (tmp_path / "v").write_text("go 1\npacket 1 00\npacket 1 0\n")
    with pytest.raises(VectorError) as caught:
        read_vectors(tmp_path / "v")
    first, second, last = str(caught.value).splitlines()
    assert first.startswith(f"{tmp_path}/v:1: unknown command go;")
    assert second == f"{tmp_path}/v:3: a frame must be whole bytes, not 1 hexadecimal digits"
    assert last == "2 errors"
    (tmp_path / "v").write_text("go 1\n" * 21)
    with pytest.raises(VectorError) as caught:
        read_vectors(tmp_path / "v")
    assert len(str(caught.value).splitlines()) == 21
    assert str(caught.value).endswith("\n20 errors; there are more")


def test_all_lines_that_the_program_refuses_are_reported_but_no_lines_that_refer_to_them(
    tmp_path: Path,
) -> None:
    lines = "default nothing pass()\nmember spread 0 nothing()\nmembers spread 1 0\n"
    (tmp_path / "v").write_text(lines + "insert single hdr.ask.what=1 _member(id=0)\n")
    with (
        Switch.from_p4(PROGRAMS / "selectors.p4") as switch,
        pytest.raises(VectorError) as caught,
    ):
        list(failures(switch, read_vectors(tmp_path / "v")))
    first, second, last = str(caught.value).splitlines()
    assert first.startswith(f"{tmp_path}/v:1: ")
    assert second.startswith(f"{tmp_path}/v:2: ")
    assert last == "2 errors"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", 42),
        ("0", 0),
        ("0x2A", 42),
        ("2a", 42),
        ("02a", 42),
        ("010", 16),
        ("0b10", 0xB10),
        ("020000000001", 0x020000000001),
        ("1e3", 0x1E3),
    ],
)
def test_a_number_is_decimal_or_hexadecimal(text: str, value: int, tmp_path: Path) -> None:
    (tmp_path / "v").write_text(f"insert t a={text} b(c={text})\nregister r 0 {text}\n")
    vectors = read_vectors(tmp_path / "v")
    assert (vectors.inserts[0].match, vectors.inserts[0].params) == ({"a": value}, {"c": value})
    assert vectors.registers[0].values == (value,)


def test_the_command_reports_wrong_lines(tmp_path: Path) -> None:
    (tmp_path / "v").write_text("go 1\nstop\n")
    program = PROGRAMS / "selectors.p4"
    ran = subprocess.run(
        [sys.executable, "-m", "inagg_switch.cli", "test", program, tmp_path / "v"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 2
    assert [line.split(": ")[0] for line in ran.stderr.splitlines()] == [
        f"{tmp_path}/v:1", f"{tmp_path}/v:2", "2 errors"]  # fmt: skip


def test_wrong_digests_are_reported(tmp_path: Path) -> None:
    frame = "packet 1 09cb5501\nexpect 2 09cb55010000000000"
    (tmp_path / "v").write_text(f"{frame}\ndigest learned_t flow=1 port=1 odd=1\n{frame}\n")
    with Switch.from_p4(PROGRAMS / "selectors.p4") as switch:
        found = list(failures(switch, read_vectors(tmp_path / "v")))
    wanted = "expected learned_t flow=0x1 port=0x1 odd=0x1, got learned_t flow=0xcb55 port=0x1 odd=0x1"
    assert found == [
        f"{tmp_path}/v:1: {wanted}",
        f"{tmp_path}/v:4: expected no digest, got learned_t flow=0xcb55 port=0x1 odd=0x1",
    ]


def test_an_insert_is_found_by_either_name_of_its_table(tmp_path: Path) -> None:
    (tmp_path / "v").write_text("insert t a=0x1 b()\ninsert I.t a=2 b()\n")
    vectors = read_vectors(tmp_path / "v")
    assert vectors.entry("I.t", 1).match == vectors.entry("t", 1).match == {"a": 2}
    with pytest.raises(VectorError, match="table t has no insert 2: inserts count from 0"):
        vectors.entry("t", 2)


def test_vectors_are_text(tmp_path: Path) -> None:
    (tmp_path / "v").write_bytes(b"packet 1 \xff")
    with pytest.raises(VectorError, match="not UTF-8"):
        read_vectors(tmp_path / "v")


def test_a_failure_has_the_hint_of_its_packet(switch_command: list[str], tmp_path: Path) -> None:
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text("packet 1 09cb5501\nexpect 2 09cb55010000000000\n")
    wrong.write_text(
        "packet 1 09cb5501\nexpect 2 00\n"
        "hint Is the table  applied?  # to all packets\n"
        "packet 1 09cb5501\nexpect 2 01\n"
        "hint Second.\nhint Third.\npacket 1 09cb5501\nexpect 2 02\n"
    )
    done = subprocess.run(
        [*switch_command, "test", str(PROGRAMS / "selectors.p4"), str(right), str(wrong)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    lines = [line.partition(", got ")[0].replace(f"{tmp_path}/", "") for line in done.stdout.splitlines()]
    assert lines == [
        "right: 1 packets, 0 wrong",
        "wrong:1: expected 2:00",
        "wrong:4: expected 2:01",
        "    hint: Is the table applied?",
        "wrong:8: expected 2:02",
        "    hint: Third.",
        "wrong: 3 packets, 3 wrong",
        "1 of 2 files pass",
    ]


def test_a_hint_is_written_once_for_its_packets(tmp_path: Path) -> None:
    lines = ["packet 1 00", "hint One.", "packet 1 01", "packet 1 02", "hint Two.", "packet 1 03"]
    (tmp_path / "v").write_text("\n".join(lines))
    with Switch.from_p4(PROGRAMS / "selectors.p4") as switch:
        assert list(lines_of(read_vectors(tmp_path / "v"), switch.p4info)) == lines
