# SPDX-License-Identifier: Apache-2.0
"""The wheel, fresh virtual environments that have it, and commands run in an empty folder. All of it lies below one
temporary folder outside the clone."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from inagg_testbed.network.lifecycle import manifests
from tests import ROOT

PYTHON = os.environ.get("INAGG_PYTHON", "/usr/bin/python3")  # which Mininet belongs to, as in scripts/setup
_BUILD_SDIST = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
_TIMEOUT_S = 1800.0
_READY_TIMEOUT_S = 120.0
_END_S = 10.0
_TAG = "INAGG_WHEEL_TEST"  # in the environment of all processes: the temporary folder


class CheckError(Exception):
    """An installation does not do what it should."""


@dataclass(frozen=True)
class Workplace:
    """A temporary folder and what runs there."""

    folder: Path

    @classmethod
    @contextlib.contextmanager
    def open(cls) -> Iterator["Workplace"]:
        """Makes the folder, and removes it. Raises CheckError if something of it is left at the end."""
        with tempfile.TemporaryDirectory(prefix="inagg-wheel-") as name:
            place = cls(Path(name))
            for part in ("empty", "tmp", "dist", "home", "results"):
                (place.folder / part).mkdir()
            yield place
            place._check_remains()

    @property
    def results(self) -> Path:
        """Where commands write what they are asked to write."""
        return self.folder / "results"

    def build_sdist(self) -> Path:
        dist = self.folder / "dist"
        self.run([sys.executable, "-c", _BUILD_SDIST, str(dist)], within=ROOT)
        (sdist,) = dist.glob("*.tar.gz")
        return sdist

    def build(self, sdist: Path, python: str) -> Path:
        """The wheel for a Python, made as `pip install` of the sdist makes it."""
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            builder = Installation(self, Path(folder) / "builder")
            self.run([python, "-m", "venv", str(builder.path)])
            dist = sdist.parent / "wheel"
            pip = self._pip(builder.command("python"))
            self.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(dist), str(sdist)])
        (wheel,) = dist.glob("*.whl")
        return wheel.replace(sdist.parent / wheel.name)

    def install(
        self, wheel: Path, extra: str, python: str, *, system_packages: bool = False
    ) -> "Installation":
        """The wheel with an extra ("": none) in a fresh virtual environment of a Python."""
        made = Installation(self, self.folder / f"venv-{Path(python).name}-{extra or 'base'}")
        system = ["--system-site-packages"] if system_packages else []
        self.run([python, "-m", "venv", *system, str(made.path)])
        pip = [*self._pip(made.command("python")), "install"]
        if extra in ("worker", "testbed"):
            self.run([*pip, "torch"])  # first, as in scripts/setup
        self.run([*pip, f"{wheel}[{extra}]" if extra else str(wheel)])
        return made

    def run(self, command: list[str], *, status: int = 0, within: Path | None = None) -> str:
        """What a command prints, on stdout and stderr. It runs in an empty folder unless `within` is one, and leaves it
        empty. Raises CheckError if it ends with another exit status."""
        empty = self.folder / "empty"
        try:
            done = subprocess.run(
                command,
                cwd=within or empty,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise CheckError(f"{' '.join(command)}\ndid not end within {_TIMEOUT_S:g} s") from error
        if done.returncode != status:
            raise CheckError(
                f"{' '.join(command)}\nended with status {done.returncode}:\n{done.stdout[-4000:]}"
            )
        if written := [path.name for path in empty.iterdir()]:
            raise CheckError(f"{' '.join(command)}\nwrote {written} into the folder that it ran in")
        return done.stdout

    @contextlib.contextmanager
    def serving(self, command: list[str], name: str) -> Iterator[None]:
        """A command that prints "ready" and runs until SIGTERM. Raises CheckError if it does not, or ends badly."""
        log = self.results / f"{name}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                command,
                cwd=self.folder / "empty",
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        try:
            deadline = time.monotonic() + _READY_TIMEOUT_S
            while "ready" not in log.read_text().splitlines():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise CheckError(f"{' '.join(command)}\nis not ready:\n{log.read_text()}")
                time.sleep(0.1)
            yield
            process.send_signal(signal.SIGTERM)
            if process.wait(_END_S) != 0:
                raise CheckError(f"{' '.join(command)}\nended badly:\n{log.read_text()}")
        finally:
            process.kill()
            process.wait()

    def _pip(self, python: str) -> list[str]:
        return [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]

    def _environment(self) -> dict[str, str]:
        ours = {
            name: value for name, value in os.environ.items() if not name.startswith(("INAGG_", "PYTHON"))
        }
        ours.pop("VIRTUAL_ENV", None)
        pip_cache = os.environ.get("PIP_CACHE_DIR") or str(Path.home() / ".cache" / "pip")
        return ours | {
            _TAG: str(self.folder),
            "HOME": str(self.folder / "home"),
            "XDG_CACHE_HOME": str(self.folder / "home" / "cache"),
            "TMPDIR": str(self.folder / "tmp"),
            "TORCHINDUCTOR_CACHE_DIR": str(
                self.folder / "home" / "inductor"
            ),  # else in TMPDIR, to stay there
            "PIP_CACHE_DIR": pip_cache,
            "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),
        }

    def _check_remains(self) -> None:
        """Namespaces live as long as their processes, and testbeds stand in manifests."""
        left = [f"temporary file {path}" for path in (self.folder / "tmp").iterdir()]
        left += [f"process {pid}: {command}" for pid, command in self._processes()]
        left += [f"testbed {name}" for name, each in manifests().items() if str(self.folder) in repr(each)]
        if left:
            raise CheckError("something is left behind:\n" + "\n".join(left))

    def _processes(self) -> Iterator[tuple[str, str]]:
        tag = f"{_TAG}={self.folder}".encode()
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if tag in (process / "environ").read_bytes().split(b"\0"):
                    yield process.name, (process / "cmdline").read_text().replace("\0", " ")


@dataclass(frozen=True)
class Installation:
    """A virtual environment."""

    place: Workplace
    path: Path

    def command(self, name: str) -> str:
        """The path of a command of it."""
        return str(self.path / "bin" / name)

    def run(self, name: str, *arguments: str, status: int = 0) -> str:
        """As `Workplace.run`, of a command of it."""
        return self.place.run([self.command(name), *arguments], status=status)

    def remove(self) -> None:
        """Delete it. With the CUDA build of torch it has 5 GB."""
        shutil.rmtree(self.path)

    def distributions(self) -> set[str]:
        """The names of what is installed in it, the system's packages left out."""
        listed = self.run("python", "-m", "pip", "--disable-pip-version-check", "list", "--local")
        return {line.split()[0].lower() for line in listed.splitlines()[2:] if line and line[0].isalnum()}
