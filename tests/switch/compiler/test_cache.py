# SPDX-License-Identifier: Apache-2.0
"""The cache of compiled programs: entries are found again, damaged entries are replaced, failures are explained."""

import errno
import importlib.util
import os
import signal
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from inagg_switch import Switch, ToolchainError
from inagg_switch.compiler import build, compile_file
from tests.switch.snippets import v1program
from tests.waiting import wait_until

SMALL = v1program("hdr.h.b = hdr.h.a + 1; sm.egress_spec = 2;")
PREPROCESSES = '#!/bin/sh\n[ "$1" = -E ] && exec g++ "$@"\n'  # the start of a compiler that fails later


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "inagg" / "switch"


@pytest.fixture
def private_cache(request: pytest.FixtureRequest) -> Path:
    """An empty cache, but for the precompiled headers if the tests' own cache has them."""
    shared = build._runtime_folder()
    cache: Path = request.getfixturevalue("empty_cache")
    for header in shared.glob("*.gch"):
        own = cache / shared.name / header.name
        own.parent.mkdir(parents=True)
        own.symlink_to(header)
    return cache


def programs_in(cache: Path) -> set[str]:
    """Names of the entries, without the precompiled headers."""
    return {path.name for path in cache.iterdir() if not path.name.startswith("runtime-")}


def test_a_program_is_compiled_once(private_cache: Path, tmp_path: Path) -> None:
    (tmp_path / "p.p4").write_text(SMALL)
    first = compile_file(tmp_path / "p.p4")
    stamp = first.artifact.library.stat().st_mtime_ns
    again = compile_file(tmp_path / "p.p4")
    assert again.artifact.library == first.artifact.library
    assert again.artifact.library.stat().st_mtime_ns == stamp
    assert first.artifact.library.is_relative_to(private_cache)
    assert len(programs_in(private_cache)) == 1


def test_another_define_is_another_program(private_cache: Path, tmp_path: Path) -> None:
    (tmp_path / "p.p4").write_text(SMALL.replace("+ 1", "+ STEP"))
    keys = {build.cache_key(compile_file(tmp_path / "p.p4", {"STEP": s}).source) for s in ("1", "2")}
    assert programs_in(private_cache) == keys


@pytest.mark.usefixtures("private_cache")
def test_a_damaged_cache_entry_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "p.p4").write_text(SMALL)
    made = compile_file(tmp_path / "p.p4").artifact
    key = made.library.parent.name
    for file in made.library.parent.iterdir():
        whole = file.read_bytes()
        for damaged in (b"", whole[:100], b"\xff" + whole[1:]):
            file.write_bytes(damaged)
            assert build.cached(key) is None or damaged == whole
        file.unlink()
        assert build.cached(key) is None
        file.write_bytes(whole)
        assert build.cached(key) == made
    made.cpp.write_text("")
    with Switch.from_p4(tmp_path / "p.p4") as program:
        assert program.process(1, bytes(8)) == [(2, b"\0\x01" + bytes(6))]
    assert build.cached(key) == made


def test_the_headers_are_precompiled_beside_the_second_program_and_removed_if_damaged(
    empty_cache: Path, tmp_path: Path
) -> None:
    (tmp_path / "p.p4").write_text(SMALL.replace("+ 1", "+ STEP"))
    found = []
    for step in "123":
        compile_file(tmp_path / "p.p4", {"STEP": step})
        found.append([path.name for path in empty_cache.glob("runtime-*/*")])
    assert found == [[], ["v1model.hpp.gch"], ["v1model.hpp.gch"]]
    (header,) = empty_cache.glob("runtime-*/*.gch")
    os.truncate(header, 100)
    compile_file(tmp_path / "p.p4", {"STEP": "4"})
    assert not header.exists()


@pytest.mark.parametrize(
    ("built_from", "message"),
    [("0" * 64 + "  tables/table.cpp\n", "tables/table.cpp changed"), (None, "not built")],
)
def test_a_package_built_from_other_sources_is_not_used(
    private_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, built_from: str | None, message: str
) -> None:
    if built_from is not None:
        (tmp_path / "control_plane.sha256").write_text(built_from)
    elsewhere = ModuleSpec("inagg_switch._ports", None, origin=str(tmp_path / "_ports.so"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: elsewhere)
    build._control_plane.cache_clear()
    build._runtime_key.cache_clear()
    (tmp_path / "p.p4").write_text(SMALL)
    with pytest.raises(ToolchainError, match=message):
        compile_file(tmp_path / "p.p4")


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A log of the programs that the C++ compiler has compiled. Where the environment has HANG, it goes on for ever."""
    log, command = tmp_path / "compiled.log", tmp_path / "g++"
    hangs = f'echo >> {log}; [ -n "$HANG" ] && exec sleep 1000'
    command.write_text(f'#!/bin/sh\ncase "$*" in *-shared*) {hangs};; esac\nexec g++ "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("CXX", str(command))
    return log


def start(program: Path, **environment: str) -> "subprocess.Popen[str]":
    """A process that compiles a program and prints what the program does with a packet. It leads a process group."""
    code = f"from inagg_switch import Switch; print(Switch.from_p4({str(program)!r}).process(1, bytes(8)))"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
        start_new_session=True,
    )


def test_processes_that_start_the_same_program_at_once_compile_it_once(
    private_cache: Path, compiler: Path, tmp_path: Path
) -> None:
    (tmp_path / "p.p4").write_text(SMALL)
    running = [start(tmp_path / "p.p4") for _ in range(3)]
    outputs = {process.communicate()[0].strip() for process in running}
    assert [process.returncode for process in running] == [0, 0, 0]
    assert outputs == {str([(2, b"\0\x01" + bytes(6))])}
    assert len(programs_in(private_cache)) == 1
    assert compiler.read_text() == "\n"


def test_a_process_that_dies_while_it_compiles_blocks_no_other(
    private_cache: Path, compiler: Path, tmp_path: Path
) -> None:
    (tmp_path / "p.p4").write_text(SMALL)
    first = start(tmp_path / "p.p4", HANG="1")
    wait_until(compiler.exists, "the compiler runs")
    second = start(tmp_path / "p.p4")
    os.kill(first.pid, signal.SIGKILL)  # its compiler stays
    try:
        assert second.communicate(timeout=120)[0].strip() == str([(2, b"\0\x01" + bytes(6))])
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.communicate()


@pytest.mark.usefixtures("private_cache")
def test_without_a_compiler_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "p.p4").write_text(SMALL)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolchainError, match="apt install"):
        Switch.from_p4(tmp_path / "p.p4")


@pytest.mark.usefixtures("private_cache")
def test_a_compiler_that_fails_is_reported_as_a_bug_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "p.p4").write_text(SMALL)
    (tmp_path / "broken-g++").write_text(f"{PREPROCESSES}echo 'error: no' >&2\nexit 1\n")
    (tmp_path / "broken-g++").chmod(0o755)
    monkeypatch.setenv("CXX", str(tmp_path / "broken-g++"))
    with pytest.raises(ToolchainError, match="bug in inagg_switch"):
        Switch.from_p4(tmp_path / "p.p4")
    assert programs_in(tmp_path / "cache" / "inagg" / "switch") == set()


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "p.p4").write_text(SMALL)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ToolchainError, match="XDG_CACHE_HOME"):
        Switch.from_p4(tmp_path / "p.p4")


@pytest.mark.usefixtures("private_cache")
def test_a_full_disk_is_not_reported_as_a_bug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "p.p4").write_text(SMALL)
    (tmp_path / "g++").write_text(
        f"{PREPROCESSES}echo 'ld: error: {os.strerror(errno.ENOSPC)}' >&2\nexit 1\n"
    )
    (tmp_path / "g++").chmod(0o755)
    monkeypatch.setenv("CXX", str(tmp_path / "g++"))
    with pytest.raises(ToolchainError, match="No space left on device in") as caught:
        Switch.from_p4(tmp_path / "p.p4")
    assert "bug" not in str(caught.value)


def test_a_user_without_a_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    (tmp_path / "p.p4").write_text(SMALL)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(ToolchainError, match="no home folder for the cache: set XDG_CACHE_HOME"):
        Switch.from_p4(tmp_path / "p.p4")
