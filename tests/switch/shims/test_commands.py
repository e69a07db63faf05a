# SPDX-License-Identifier: Apache-2.0
"""Commands with p4c's and BMv2's names: their options, files and errors."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from google.protobuf import json_format, text_format
from p4.config.v1.p4info_pb2 import P4Info

from inagg_switch import Switch
from inagg_testbed.network.requirements import requirements
from tests.bmv2_commands import bmv2_command
from tests.switch import PROGRAMS

STATE = str(PROGRAMS / "state.p4")
Done = subprocess.CompletedProcess[str]


def run(folder: Path, *command: str, cwd: Path | None = None) -> Done:
    return subprocess.run(
        [str(folder / command[0]), *command[1:]],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=cwd,
        check=False,
    )


def assert_refused(done: Done, *words: str) -> None:
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


@pytest.mark.parametrize(
    "name", ["p4c", "p4c-bm2-ss", "simple_switch", "simple_switch_grpc", "simple_switch_CLI"]
)
def test_each_command_says_that_it_is_ours(shims: Path, name: str) -> None:
    assert run(shims, name, "--version").stdout.startswith(f"{name} of inagg-switch")


def test_our_own_tests_and_testbeds_take_them_for_absent(
    shims: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{shims}{os.pathsep}{os.environ['PATH']}")
    bmv2_command.cache_clear()
    assert bmv2_command("p4c-bm2-ss") is None
    bmv2_command.cache_clear()
    assert not any(need.present for need in requirements() if need.switch == "bmv2")


def test_another_file_of_the_same_name_is_not_overwritten(switch_command: list[str], tmp_path: Path) -> None:
    (tmp_path / "p4c").write_text("the real one\n")
    done = subprocess.run(
        [*switch_command, "shims", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "choose another folder" in done.stderr
    assert (tmp_path / "p4c").read_text() == "the real one\n"


def test_a_module_of_the_exercise_hides_no_module_of_ours(shims: Path, tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('wrong json')\n")
    done = run(shims, "p4c-bm2-ss", "-o", "state.json", STATE, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_p4c_bm2_ss_writes_what_a_makefile_of_the_tutorials_asks_for(shims: Path, tmp_path: Path) -> None:
    names = ("state.p4.p4info.txtpb", "info.txt", "info.json", "info.bin")
    files = ",".join(str(tmp_path / name) for name in names)
    done = run(
        shims, "p4c-bm2-ss", "--p4v", "16", "--p4runtime-files", files, "-o", str(tmp_path / "s.json"), STATE
    )
    assert (done.returncode, done.stderr) == (0, "")
    expected = Switch.from_p4(STATE).p4info
    for name in names[:2]:
        assert text_format.Parse((tmp_path / name).read_text(), P4Info()) == expected
    assert json_format.Parse((tmp_path / "info.json").read_text(), P4Info()) == expected
    assert P4Info.FromString((tmp_path / "info.bin").read_bytes()) == expected
    with Switch.from_source(json.loads((tmp_path / "s.json").read_text())["p4_source"]) as switch:
        assert switch.p4info == expected


def test_p4c_writes_into_a_folder(shims: Path, tmp_path: Path) -> None:
    """As p4-utils calls it."""
    options = ["--target", "bmv2", "--arch", "v1model", "--std", "p4-16", "-o", str(tmp_path)]
    done = run(shims, "p4c", STATE, *options, "--p4runtime-files", str(tmp_path / "state_p4rt.txt"))
    assert (done.returncode, done.stderr) == (0, "")
    assert {path.name for path in tmp_path.iterdir()} == {"state.json", "state.p4i", "state_p4rt.txt"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--std", "p4-14", STATE], ("only P4_16",)),
        (["--arch", "psa", STATE], ("only bmv2 with v1model",)),
        (["--p4runtime-files", "info.yaml", STATE], ("info.yaml", "--p4runtime-format")),
        (["--nonsense", STATE], ("unknown option --nonsense",)),
        (["--pp", "x", STATE], ("--pp is not supported",)),
        ([], ("PROGRAM.p4",)),
        (["nothere.p4"], ("nothere.p4: No such file",)),
        (["-o", "/nothere/x.json", STATE], ("/nothere/x.json: No such file",)),
    ],
)
def test_p4c_explains_what_it_does_not_do(
    shims: Path, tmp_path: Path, arguments: list[str], words: tuple[str, ...]
) -> None:
    assert_refused(run(shims, "p4c-bm2-ss", *arguments, cwd=tmp_path), *words)
    assert list(tmp_path.iterdir()) == []


def test_an_error_in_the_program_has_its_place(shims: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.p4").write_text("header h {\n    bit<8> a\n}\n")
    assert_refused(run(shims, "p4c-bm2-ss", "bad.p4", cwd=tmp_path), "bad.p4:3:1: error: ")


def test_options_without_effect_are_named(shims: Path, tmp_path: Path) -> None:
    done = run(shims, "p4c-bm2-ss", "-g", "--emit-externs", "-o", "s.json", STATE, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "p4c-bm2-ss: no effect here: -g --emit-externs\n")


@pytest.mark.parametrize("name", ["simple_switch", "simple_switch_grpc"])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ("either the JSON of p4c-bm2-ss or --no-p4",)),
        (["--no-p4", "x.json"], ("either the JSON of p4c-bm2-ss or --no-p4",)),
        (["a.json", "b.json"], ("a.json b.json",)),
        (["nothere.json"], ("nothere.json: No such file",)),
        (["--no-p4", "--restore-state", "x"], ("--restore-state is not supported",)),
        (["--no-p4", "--nonsense"], ("unknown option --nonsense",)),
        (["--no-p4", "--", "--drop-port", "5"], ("it is 511",)),
        (["--no-p4", "--", "x.json"], ("stands before",)),
        (["--no-p4", "-i", "eth0"], ("ID@INTERFACE",)),
    ],
)
def test_switches_explain_what_they_do_not_do(
    shims: Path, tmp_path: Path, name: str, arguments: list[str], words: tuple[str, ...]
) -> None:
    assert_refused(run(shims, name, *arguments, cwd=tmp_path), *words)


def test_a_json_of_bmv2_is_not_taken(shims: Path, tmp_path: Path) -> None:
    (tmp_path / "bmv2.json").write_text('{"header_types": []}')
    done = run(shims, "simple_switch", "bmv2.json", "--thrift-port", "0", cwd=tmp_path)
    assert_refused(done, "'p4_source'", "BMv2's")
