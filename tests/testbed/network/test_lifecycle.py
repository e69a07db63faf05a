# SPDX-License-Identifier: Apache-2.0
"""Runs end completely, and change nothing that belongs to others."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inagg_testbed.errors import ConfigurationError
from inagg_testbed.network.lifecycle import (
    RUN_VARIABLE,
    Interrupted,
    Manifest,
    ProcessId,
    Run,
    find_run,
    manifests,
    open_run,
    signals_raise,
    sweep,
    tagged_processes,
)
from inagg_testbed.operate.status import uptime_s
from tests.waiting import wait_until

Sleeper = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def sleeper() -> Iterator[Sleeper]:
    """Starts processes that sleep; kills those that a test leaves."""
    started: list[subprocess.Popen[bytes]] = []

    def start(**environment: str) -> "subprocess.Popen[bytes]":
        started.append(subprocess.Popen(["sleep", "1000"], env={**os.environ, **environment}))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def dead_launcher() -> ProcessId:
    process = subprocess.Popen(["sleep", "1000"])
    identity = ProcessId.of(process.pid, "launcher")
    process.kill()
    process.wait()
    return identity


def test_a_manifest_reads_back_as_written(tmp_path: Path) -> None:
    written = Manifest(
        "abc", ProcessId(1, 2, "launcher"), [ProcessId(3, 4, "switch")], {"h1": ProcessId(5, 6)}
    )
    written.settings["hosts"] = 1
    written.write(tmp_path / "abc.json")
    assert Manifest.read(tmp_path / "abc.json") == written
    assert [path.name for path in tmp_path.iterdir()] == ["abc.json"]


def test_another_process_under_a_recorded_pid_is_left_alone(sleeper: Sleeper) -> None:
    process = sleeper()
    stale = ProcessId(process.pid, ProcessId.of(process.pid).start - 1)
    assert not stale.alive()
    stale.signal(signal.SIGKILL)
    assert process.poll() is None


def test_a_zombie_is_not_alive() -> None:
    process = subprocess.Popen(["true"])
    identity = ProcessId.of(process.pid)
    wait_until(lambda: not identity.alive(), "the process ends")
    assert ProcessId.of(process.pid) == identity
    process.wait()


def test_a_run_that_fails_leaves_no_process_and_no_manifest(tmp_path: Path, sleeper: Sleeper) -> None:
    process = sleeper()

    def fail() -> None:
        with open_run(tmp_path) as run:
            run.record_process(process.pid, "sleeper")
            assert list(manifests(tmp_path)) == [run.id]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert process.wait() == -signal.SIGTERM
    assert manifests(tmp_path) == {}


def test_the_next_start_removes_what_a_dead_launcher_left(tmp_path: Path, sleeper: Sleeper) -> None:
    crashed = Run(tmp_path)
    recorded, descendant = sleeper(), sleeper(**{RUN_VARIABLE: crashed.id})
    crashed.record_process(recorded.pid, "sleeper")
    crashed.manifest.launcher = dead_launcher()
    crashed.save()
    with open_run(tmp_path) as run:
        assert list(manifests(tmp_path)) == [run.id]
        assert recorded.wait() == -signal.SIGTERM
        assert descendant.wait() == -signal.SIGTERM


def test_a_sweep_leaves_the_run_of_a_living_launcher_alone(tmp_path: Path, sleeper: Sleeper) -> None:
    living = Run(tmp_path)
    process = sleeper(**{RUN_VARIABLE: living.id})
    living.record_process(process.pid, "sleeper")
    assert sweep(tmp_path) == []
    assert process.poll() is None
    assert list(manifests(tmp_path)) == [living.id]


def test_a_file_that_is_no_manifest_is_reported_and_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "notes.json").write_text("{}")
    assert sweep(tmp_path) == []
    assert "notes.json is not a valid manifest" in caplog.text
    assert (tmp_path / "notes.json").exists()


def test_descendants_are_known_by_the_run_in_their_environment(sleeper: Sleeper) -> None:
    process = sleeper(**{RUN_VARIABLE: "testrun1"})
    sleeper(**{RUN_VARIABLE: "testrun12"})
    wait_until(lambda: bool(tagged_processes("testrun1", besides=0)), "the process is found")
    assert [entry.pid for entry in tagged_processes("testrun1", besides=0)] == [process.pid]
    assert tagged_processes("testrun1", besides=process.pid) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_run_and_is_passed_on(tmp_path: Path, number: signal.Signals) -> None:
    with pytest.raises(Interrupted, match=number.name), signals_raise(), open_run(tmp_path):
        signal.raise_signal(number)
    assert manifests(tmp_path) == {}


def test_signal_handlers_are_restored() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with signals_raise():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


def test_the_only_run_need_not_be_named(tmp_path: Path) -> None:
    for wanted in (None, "nosuch"):
        with pytest.raises(ConfigurationError, match="no testbed is up"):
            find_run(wanted, tmp_path)
    first = Run(tmp_path)
    assert find_run(None, tmp_path) == first.manifest
    second = Run(tmp_path)
    with pytest.raises(ConfigurationError, match=f"{first.id}|{second.id}"):
        find_run(None, tmp_path)
    assert find_run(second.id, tmp_path) == second.manifest
    with pytest.raises(ConfigurationError, match="nosuch"):
        find_run("nosuch", tmp_path)


def run_of(installation: str, folder: Path) -> Run:
    run = Run(folder)
    run.manifest.settings["installation"] = installation
    run.save()
    return run


def test_the_only_run_of_this_installation_need_not_be_named(tmp_path: Path) -> None:
    run_of("/somewhere/else", tmp_path)
    own = Run(tmp_path)
    run_of("/elsewhere", tmp_path)
    assert find_run(None, tmp_path) == own.manifest


def test_a_choice_among_runs_of_this_installation_lists_no_others(tmp_path: Path) -> None:
    ours = [Run(tmp_path), Run(tmp_path)]
    other = run_of("/somewhere/else", tmp_path)
    for wanted in (None, "nosuch"):
        with pytest.raises(ConfigurationError, match="these testbeds of this checkout are up:") as refused:
            find_run(wanted, tmp_path)
        assert all(run.id in str(refused.value) for run in ours)
        assert other.id not in str(refused.value)


def test_a_run_of_another_installation_is_taken_by_name_alone(tmp_path: Path) -> None:
    other = run_of("/somewhere/else", tmp_path)
    with pytest.raises(ConfigurationError, match=f"name one with --run; .*\n  {other.id}: "):
        find_run(None, tmp_path)
    assert find_run(other.id, tmp_path) == other.manifest


def test_a_record_that_cannot_be_rewritten_stops_no_teardown(
    tmp_path: Path, sleeper: Sleeper, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(tmp_path)
    entry = run.record_process(sleeper().pid, "sleeper")
    run.path = tmp_path / "gone" / "run.json"
    run.forget_process(entry)
    assert "still names a process that has ended" in caplog.text
    assert entry not in run.manifest.processes


def test_a_testbed_is_as_old_as_its_first_host(sleeper: Sleeper) -> None:
    first, now = ProcessId(1, 100, "h1"), ProcessId.of(sleeper().pid, "h2")
    of_first, of_both = (
        uptime_s(Manifest("abc", ProcessId(1, 0, "launcher"), namespaces=made))
        for made in ({"h1": first}, {"h2": now, "h1": first})
    )
    assert of_both == pytest.approx(of_first, abs=1)
    assert uptime_s(Manifest("abc", ProcessId(1, 0, "launcher"), namespaces={"h2": now})) < 5
    assert uptime_s(Manifest("abc", ProcessId(1, 0, "launcher"))) == pytest.approx(of_first + 1, abs=1)
