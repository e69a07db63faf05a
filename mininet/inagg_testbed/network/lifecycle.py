# SPDX-License-Identifier: Apache-2.0
"""Runs: each testbed has an id and a manifest of exactly what it created.

A manifest is a JSON file that is rewritten atomically before or right after each creation. It contains
- launcher: pid and start time, so that a later process with the same pid is not mistaken for it;
- processes: pid and start time of each process that was started;
- namespaces: pid and start time of the shell that holds each node's namespaces;
- folders: temporary folders.
Interfaces live inside the namespaces and vanish with them.

Three events end a run, and each leads to `Manifest.teardown`: the launcher leaves `open_run` (success, an error, or a
signal that `signals_raise` turns into an exception), `inagg down` signals the launcher, or, after a launcher was
killed, the next start on this machine removes its runs (`sweep`). The kernel kills every child when its parent dies
(PR_SET_PDEATHSIG, set by setpriv(1)). Teardown finds descendants by the run's id in their environment. It never looks a
process up by its command name, so two runs never touch each other.
"""

import contextlib
import fcntl
import json
import logging
import os
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from inagg_testbed.errors import ConfigurationError

log = logging.getLogger(__name__)

STATE_DIR = Path("/run/inagg")
RUN_VARIABLE = "INAGG_RUN"
READY = "ready"  # the last stage of a testbed that is brought up
INSTALLATION = str(Path(__file__).resolve().parents[3])  # the checkout, or pip's folder of packages
_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
_TERM_GRACE_S = 3.0
_KILL_GRACE_S = 5.0


class Interrupted(BaseException):
    """A signal asked the launcher to stop. Not an Exception: nothing but teardown may catch it."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number = number


@dataclass(frozen=True)
class ProcessId:
    """Identifies a process: pids are reused, pairs of pid and start time (clock ticks since boot) are not."""

    pid: int
    start: int
    name: str = ""

    @classmethod
    def of(cls, pid: int, name: str = "") -> "ProcessId":
        """The identity of process `pid`, which must exist (a zombie does). Raises ProcessLookupError."""
        started = start_time(pid)
        if started is None:
            raise ProcessLookupError(f"no process {pid}")
        return cls(pid, started, name)

    def alive(self) -> bool:
        """Whether the process still runs; a zombie does not."""
        return start_time(self.pid, zombies=False) == self.start

    def signal(self, number: int) -> None:
        """Send a signal if the process still runs."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def start_time(pid: int, *, zombies: bool = True) -> int | None:
    """Start time of a process (proc(5), /proc/PID/stat, field 22); None if it does not exist."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    return int(fields[19]) if zombies or fields[0] not in "ZX" else None


@dataclass
class Manifest:
    """What a run created; see the module docstring. `settings` describes the testbed for commands that inspect it."""

    run: str
    launcher: ProcessId
    processes: list[ProcessId] = field(default_factory=list)
    namespaces: dict[str, ProcessId] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> "Manifest":
        """Load a manifest. Raises OSError, ValueError."""
        data = json.loads(path.read_text())
        return cls(
            run=data["run"],
            launcher=ProcessId(**data["launcher"]),
            processes=[ProcessId(**entry) for entry in data["processes"]],
            namespaces={node: ProcessId(**entry) for node, entry in data["namespaces"].items()},
            folders=data.get("folders", []),
            settings=data["settings"],
        )

    def write(self, path: Path) -> None:
        """Replace the file atomically: a reader sees the old manifest or the new one."""
        scratch = path.with_suffix(".new")
        try:
            scratch.write_text(json.dumps(asdict(self), indent=1))
            scratch.replace(path)
        except OSError:
            scratch.unlink(missing_ok=True)
            raise

    @property
    def starting(self) -> str | None:
        """What is brought up at the moment; None if the testbed is ready."""
        stage: str = self.settings.get("stage", "testbed")
        return None if stage == READY else stage

    def namespace(self, node: str) -> ProcessId:
        """The shell that holds a node's namespaces. Raises ConfigurationError for an unknown node."""
        if node not in self.namespaces:
            raise ConfigurationError(f"no node {node}; there are {', '.join(self.namespaces)}")
        return self.namespaces[node]

    def node_environment(self, node: str, environment: Mapping[str, str]) -> dict[str, str]:
        """Environment of a command in a node: the testbed's, overridden by `environment`, and the run's id."""
        own: dict[str, str] = self.settings.get("environment", {}).get(node, {})
        return {**own, **environment, RUN_VARIABLE: self.run}

    def teardown(self) -> list[str]:
        """End and remove everything that is recorded; return the processes that could not be ended."""
        end_processes([*reversed(self.processes), *tagged_processes(self.run, besides=os.getpid())])
        end_processes(list(self.namespaces.values()), politely=False)  # shells ignore SIGTERM
        for folder in self.folders:
            shutil.rmtree(folder, ignore_errors=True)
        left = [*self.processes, *self.namespaces.values(), *tagged_processes(self.run, besides=os.getpid())]
        return [f"process {entry.pid} ({entry.name})" for entry in left if entry.alive()]


def tagged_processes(run: str, *, besides: int) -> list[ProcessId]:
    """Processes whose environment names the run: descendants of the processes that the run started."""
    tag = f"{RUN_VARIABLE}={run}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == besides:
            continue
        with contextlib.suppress(OSError):
            if tag in (entry / "environ").read_bytes().split(b"\0"):
                found.append(ProcessId.of(int(entry.name), "descendant"))
    return found


def end_processes(processes: list[ProcessId], *, politely: bool = True) -> None:
    """Send SIGTERM (if politely) and wait, then send SIGKILL and wait."""
    for number, grace in ((signal.SIGTERM, _TERM_GRACE_S), (signal.SIGKILL, _KILL_GRACE_S))[not politely :]:
        for entry in processes:
            entry.signal(number)
        deadline = time.monotonic() + grace
        while any(entry.alive() for entry in processes) and time.monotonic() < deadline:
            time.sleep(0.01)


class Run:
    """One run of the launcher: its id, its manifest on disk, and its teardown."""

    def __init__(self, state_dir: Path = STATE_DIR) -> None:
        state_dir.mkdir(parents=True, exist_ok=True)
        self.id = "".join(secrets.choice(_ALPHABET) for _ in range(6))
        self.path = state_dir / f"{self.id}.json"
        self.manifest = Manifest(self.id, ProcessId.of(os.getpid(), "launcher"))
        self.manifest.settings["installation"] = INSTALLATION
        self.save()

    @property
    def environment(self) -> dict[str, str]:
        """The variables that every process of the run has in its environment."""
        return {RUN_VARIABLE: self.id}

    def save(self) -> None:
        """Write the manifest."""
        self.manifest.write(self.path)

    def record_process(self, pid: int, name: str) -> ProcessId:
        """Record a process that was just started."""
        entry = ProcessId.of(pid, name)
        self.manifest.processes.append(entry)
        self.save()
        return entry

    def forget_process(self, entry: ProcessId) -> None:
        """Drop a process that has ended and been reaped. On a full disk it stays recorded, which is harmless."""
        self.manifest.processes.remove(entry)
        try:
            self.save()
        except OSError as error:
            log.warning("%s still names a process that has ended: %s", self.path, error)

    def record_namespace(self, node: str, pid: int) -> None:
        """Record the shell that holds a node's namespaces."""
        self.manifest.namespaces[node] = ProcessId.of(pid, f"namespace of {node}")
        self.save()

    def temporary_folder(self) -> Path:
        """A new folder that only this user can enter, with a short path. Teardown removes it."""
        folder = tempfile.mkdtemp(prefix=f"inagg-{self.id}-")
        self.manifest.folders.append(folder)
        self.save()
        return Path(folder)

    def close(self) -> None:
        """Tear down and remove the manifest. If processes cannot be ended, log them and keep the manifest."""
        left = self.manifest.teardown()
        if left:
            log.error(
                "run %s: could not end %s; they stay recorded in %s", self.id, ", ".join(left), self.path
            )
            return
        self.path.unlink(missing_ok=True)


@contextlib.contextmanager
def open_run(state_dir: Path = STATE_DIR) -> Iterator[Run]:
    """Clean up after crashed launchers, then open a run that is torn down when the block ends, for any reason."""
    sweep(state_dir)
    run = Run(state_dir)
    try:
        yield run
    finally:
        with _signals_held():
            run.close()


def manifests(state_dir: Path = STATE_DIR) -> dict[str, Manifest]:
    """Manifests of all runs on this machine, by run id. An unreadable file is reported and skipped."""
    found = {}
    for path in sorted(state_dir.glob("*.json")):
        try:
            found[path.stem] = Manifest.read(path)
        except FileNotFoundError:
            continue
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("%s is not a valid manifest: %s", path, error)
    return found


def sweep(state_dir: Path = STATE_DIR) -> list[str]:
    """Remove what crashed launchers left behind; return the ids of their runs."""
    if not state_dir.is_dir():
        return []
    swept = []
    with (state_dir / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for run, manifest in manifests(state_dir).items():
            if manifest.launcher.alive():
                continue
            left = manifest.teardown()
            if left:
                log.error("run %s: could not end %s", run, ", ".join(left))
                continue
            (state_dir / f"{run}.json").unlink(missing_ok=True)
            swept.append(run)
            log.info("removed what the crashed run %s left behind", run)
    return swept


def find_run(run: str | None, state_dir: Path = STATE_DIR) -> Manifest:
    """The manifest of a run that is up; without an id, the only run of this installation. Raises ConfigurationError."""
    known = {name: manifest for name, manifest in manifests(state_dir).items() if manifest.launcher.alive()}
    if run is not None and run in known:
        return known[run]
    if not known:
        asked = "" if run is None else f", so there is no run {run}"
        raise ConfigurationError(f"no testbed is up{asked}; `inagg up` brings one up")
    ours = [each for each in known.values() if each.settings.get("installation") == INSTALLATION]
    if run is None and len(ours) == 1:
        return ours[0]
    wanted = "name one with --run" if run is None else f"{run} is not one of them"
    shown = ours or list(known.values())
    of = " of this checkout" if ours else ""
    places = [f"  {each.run}: {each.settings.get('results', '')}" for each in shown]
    raise ConfigurationError("\n".join([f"{wanted}; these testbeds{of} are up:", *places]))


def find_ready_run(run: str | None, state_dir: Path = STATE_DIR) -> Manifest:
    """The same, for what needs all parts of the testbed. Raises ConfigurationError, also while it is brought up."""
    manifest = find_run(run, state_dir)
    if manifest.starting is not None:
        raise ConfigurationError(
            f"run {manifest.run} is starting ({manifest.starting}): wait until `inagg status` shows it up"
        )
    return manifest


@contextlib.contextmanager
def signals_raise() -> Iterator[None]:
    """Inside the block SIGINT, SIGTERM and SIGHUP raise Interrupted in the main thread."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise Interrupted(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Block signals in the block: teardown is short and must finish, so a second Ctrl-C waits for it."""
    numbers = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
