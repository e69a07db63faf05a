# SPDX-License-Identifier: Apache-2.0
"""The file that keeps jobs and servers while the controller does not run."""

import logging
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from inagg_controller import state_file
from inagg_controller.errors import ConfigurationError
from inagg_controller.jobs.record import RecordError, Saved, read_job
from inagg_controller.state_file import StateFile
from tests.controller.launching import Launcher, read_line
from tests.controller.tables import create_leased, member, new_table

CHANGES = Saved(
    jobs={1: b"one", 2: b"two"},
    members={(1, 0): b"one, 0", (2, 0): b"two, 0", (2, 1): b"two, 1"},
    servers={"a": b"A"},
    numbers={"job": 3},
    epoch_key=b"key",
)


def load(path: Path) -> Saved:
    file = StateFile(path)
    try:
        return file.load()
    finally:
        file.close()


def test_what_is_saved_is_there_again(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "new" / "state.sqlite")
    assert file.load() == Saved()
    file.save(CHANGES)
    file.save(
        Saved(
            jobs={1: b"", 3: b"three"},
            members={(2, 1): b""},
            servers={"b": b"B"},
            numbers={"job": 4},
            epoch_key=b"key",
        )
    )
    file.close()
    assert load(tmp_path / "new" / "state.sqlite") == Saved(
        jobs={2: b"two", 3: b"three"},
        members={(2, 0): b"two, 0"},
        servers={"b": b"B"},
        numbers={"job": 4},
        epoch_key=b"key",
    )


def test_a_file_of_a_version_without_a_key_loads(tmp_path: Path) -> None:
    StateFile(tmp_path / "state").close()
    with sqlite3.connect(tmp_path / "state") as database:
        database.execute("DROP TABLE keys")
        database.execute("INSERT INTO numbers VALUES ('epoch', 241000000)")
    database.close()
    assert load(tmp_path / "state") == Saved(numbers={"epoch": 241_000_000})


def test_what_is_saved_outlasts_the_process(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from inagg_controller.jobs.record import Saved\n"
        "from inagg_controller.state_file import StateFile\n"
        f"StateFile(Path(sys.argv[1])).save({CHANGES!r})\nos._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", program, tmp_path / "state"], check=False).returncode == 9
    assert load(tmp_path / "state") == CHANGES


@pytest.mark.parametrize("known", [False, True])
def test_only_its_owner_can_read_it(tmp_path: Path, known: bool) -> None:
    if known:
        (tmp_path / "state").touch(0o644)
    file = StateFile(tmp_path / "state")
    file.save(CHANGES)
    files = list(tmp_path.iterdir())
    assert {path.name for path in files} == {"state", "state-wal"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    file.close()


def test_a_controller_has_it_for_itself(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "state")
    with pytest.raises(ConfigurationError, match="another controller uses this file"):
        StateFile(tmp_path / "state")
    file.save(CHANGES)
    file.close()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (
            b"something else, and long enough to have a header" * 50,
            "file is not a database; move the file away",
        ),
        ("CREATE TABLE others (a)", "its format is 0; this controller has 1; move the file away"),
        ("PRAGMA user_version = 7", "its format is 7; this controller has 1; move the file away"),
    ],
)
def test_another_file_is_not_used(tmp_path: Path, content: bytes | str, reason: str) -> None:
    path = tmp_path / "state"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        with sqlite3.connect(path) as database:
            database.execute(content)
        database.close()
    before = path.read_bytes()
    with pytest.raises(ConfigurationError, match=f"^--state {path}: {reason}"):
        StateFile(path)
    assert path.read_bytes() == before


def test_a_place_where_no_file_can_be_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"Not a directory|File exists"):
        StateFile(tmp_path / "file" / "state")


def test_what_could_not_be_saved_is_saved_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = StateFile(tmp_path / "state")
    file.save(CHANGES)
    file._database.execute("PRAGMA max_page_count = 1")  # the disk is full
    large = Saved(jobs={1: b"", 5: bytes(1 << 20)}, servers={}, numbers={"job": 6})
    file.save(large)
    file.save(Saved(jobs={6: b"six"}, members={(6, 0): b"six, 0"}, numbers={"job": 7}))
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "jobs are not saved: database or disk is full" in caplog.text
    assert file.load() == CHANGES
    assert not file.due
    monkeypatch.setattr(state_file, "_RETRY_S", 0.0)
    assert file.due
    file._database.execute("PRAGMA max_page_count = 100000")
    file.save(Saved(numbers={"job": 8}))
    assert "jobs are saved again" in caplog.text
    assert not file.due
    assert file.load() == Saved(
        jobs={2: b"two", 5: bytes(1 << 20), 6: b"six"},
        members={(2, 0): b"two, 0", (2, 1): b"two, 1", (6, 0): b"six, 0"},
        numbers={"job": 8},
    )
    file.close()


def test_a_record_of_another_version_is_an_error() -> None:
    with pytest.raises(RecordError, match="not one of this version: name: Field required"):
        read_job(b'{"id": 1}')


def test_the_controller_says_why_it_does_not_start(launch: Launcher, tmp_path: Path) -> None:
    state = tmp_path / "the state"
    file = StateFile(state)
    process = launch(state=state)
    _, log = process.communicate(timeout=20)
    assert (process.returncode, log) == (
        2,
        f"inagg-controller: --state {state}: another controller uses this file\n",
    )
    file.save(CHANGES)
    file.close()
    process = launch(state=state)
    _, log = process.communicate(timeout=20)
    assert process.returncode == 2
    assert log.startswith(f"inagg-controller: --state {state}: ")
    assert log.endswith("move the file away to begin without its jobs\n")
    state.unlink()
    assert read_line(launch(state=state)) == "ready"


def test_a_controller_without_a_place_for_its_file_goes_on(
    launch: Launcher, token_file: Path, free_port: int
) -> None:
    """Unless the operator has named the place."""
    state = token_file.with_name(f"controller-127.0.0.1-{free_port}.sqlite")
    state.mkdir()
    process = launch()
    assert read_line(process) == "ready"
    process.terminate()
    assert f"--state {state}: Is a directory; so a controller that starts again" in process.communicate()[1]
    process = launch(state=state)
    assert process.wait(20) == 2
    assert process.communicate()[1] == f"inagg-controller: --state {state}: Is a directory\n"


def test_a_job_whose_switch_is_no_more_fails() -> None:
    """The controller is started again with another topology."""
    table = new_table()
    job = create_leased(table, 2, 4)
    for rank in range(2):
        table.register(job.id, member(rank), 0.0)
    saved = table.changes()
    smaller = new_table(slot_versions=4, connected=False)
    smaller.restore(saved, 0.0)
    restored = smaller.jobs[job.id]
    assert (restored.state, restored.reason) == (
        "failed",
        "the controller was started again with another configuration",
    )
    assert smaller.switches.pools["s1"].free == 4
