# SPDX-License-Identifier: Apache-2.0
"""Stage 7: C++ to a shared library, kept in a cache.

The cache key covers everything that decides the machine code: the preprocessed program, the sources of the compiler
and of the runtime, the C++ compiler, its flags and the CPU's features. An entry is a directory that appears by rename,
so parallel compilations of one program are safe; a lock makes the others wait for the first. An entry that a crash or a
full disk damaged is made again.

Code that all programs share is compiled once. The control plane, which every program is linked with, is built with this
package. The headers are precompiled in parallel with the second program; GCC finds the precompiled header by itself.
"""

import errno
import fcntl
import hashlib
import importlib.util
import json
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from p4.config.v1 import p4info_pb2

from inagg_switch.compiler.toolchain import cpp_compiler
from inagg_switch.errors import ToolchainError

_log = logging.getLogger(__name__)
_PACKAGE = Path(__file__).resolve().parent.parent
RUNTIME = _PACKAGE / "native" / "runtime"
# Loops over a packet's state stay loops (packet.hpp): GCC would make `rep` instructions of them, which start slowly.
_TUNING = ("-O3", "-march=native", "-fno-tree-loop-distribute-patterns")
_FLAGS = ("-std=c++20", *_TUNING, "-fPIC", "-fno-plt")
_HEADER = "v1model.hpp"  # the only header that a program includes
_FILES = ("program.so", "program.cpp", "p4info.bin", "layout.bin", "constants.json")
_SUM = "digest"  # the file with the digest of _FILES
_SOURCES = "control_plane.sha256"  # of the sources of the control plane, which programs include too
_RUNTIMES_KEPT = 4  # precompiled, 100 MB each: other versions, compilers or CPUs may use the same cache
_TIMEOUT_S = 300.0
_TEMPORARY = ("TMPDIR", "TMP", "TEMP")  # as g++ chooses


@dataclass(frozen=True)
class Artifact:
    """A compiled program in the cache. `cpp` is the generated source, kept for people to read. `layout` is the P4Info
    with the widths that the library takes; for @p4runtime_translation, controllers see other widths."""

    library: Path
    cpp: Path
    p4info: p4info_pb2.P4Info
    layout: p4info_pb2.P4Info
    constants: Mapping[str, int | bool | str]


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/inagg/switch, or ~/.cache/inagg/switch."""
    base = os.environ.get("XDG_CACHE_HOME")
    if base and Path(base).is_absolute():
        return Path(base) / "inagg" / "switch"
    try:
        return Path.home() / ".cache" / "inagg" / "switch"
    except RuntimeError as error:
        raise ToolchainError("this user has no home folder for the cache: set XDG_CACHE_HOME") from error


def cache_key(source: str, *, traced: bool = False) -> str:
    """The cache key of a program; the module's docstring says what it covers."""
    compiler = _digest(*(p.read_bytes() for p in sorted((_PACKAGE / "compiler").rglob("*.py"))))
    return _digest(source.encode(), str(traced).encode(), compiler.encode(), _runtime_key().encode())


def cached(key: str) -> Artifact | None:
    """The artifact of an earlier compilation; None if it is missing or damaged."""
    folder = cache_folder() / key
    try:
        files = {name: (folder / name).read_bytes() for name in _FILES}
        if (folder / _SUM).read_text() != _digest(*files.values()):
            return None
    except (OSError, ValueError):
        return None
    info, layout = (p4info_pb2.P4Info.FromString(files[name]) for name in ("p4info.bin", "layout.bin"))
    constants = json.loads(files["constants.json"])
    return Artifact(folder / "program.so", folder / "program.cpp", info, layout, constants)


@contextmanager
def alone(key: str) -> Iterator[None]:
    """Hold the lock of a program in a block. Look into the cache inside: the last holder may have made the artifact.

    The kernel releases the lock of a process that dies. Where locks cannot be had, the block runs without.
    """
    with ExitStack() as stack:
        with suppress(OSError):
            path = cache_folder() / f"{key}.lock"
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(path.open("a"))
            fcntl.flock(file, fcntl.LOCK_EX)
            stack.callback(
                path.unlink, missing_ok=True
            )  # whoever waits has the file, whoever comes the artifact
        yield


def build(
    key: str,
    cpp: str,
    info: p4info_pb2.P4Info,
    layout: p4info_pb2.P4Info,
    constants: Mapping[str, int | bool | str],
) -> Artifact:
    """Compiles the C++ and stores the artifact in the cache. Raises ToolchainError if the C++ compiler is missing or
    fails, or the cache folder cannot be written."""
    root = cache_folder()
    try:
        root.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{key}.", dir=root))
        try:
            (folder / "program.cpp").write_text(cpp)
            compile_cpp(folder / "program.cpp", folder / "program.so")
            (folder / "p4info.bin").write_bytes(info.SerializeToString(deterministic=True))
            (folder / "layout.bin").write_bytes(layout.SerializeToString(deterministic=True))
            (folder / "constants.json").write_text(json.dumps(dict(constants)))
            (folder / _SUM).write_text(_digest(*((folder / name).read_bytes() for name in _FILES)))
            folder.chmod(0o755)
            _publish(folder, root / key)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        raise ToolchainError(
            f"cannot write to the cache folder {root}: {error.strerror}; set XDG_CACHE_HOME to a "
            "folder that can be written"
        ) from error
    made = cached(key)
    if made is None:
        raise ToolchainError(f"the compiled program vanished from {root / key}")
    return made


def _publish(folder: Path, final: Path) -> None:
    try:
        folder.rename(final)
    except OSError:
        if cached(final.name) is not None:
            return  # another process was faster; both artifacts are the same
        shutil.rmtree(final, ignore_errors=True)  # a damaged entry
        folder.rename(final)


def compile_cpp(source: Path, library: Path, extra_flags: tuple[str, ...] = ()) -> None:
    """Compiles generated code to a shared library. Raises ToolchainError."""
    folder = _runtime_folder()
    arguments = ("-shared", *extra_flags, f"-I{RUNTIME}", str(source), "-Wl,--whole-archive")
    arguments += (str(_control_plane()), "-Wl,--no-whole-archive", "-o", str(library))
    with ThreadPoolExecutor(1) as beside:
        precompiled = beside.submit(_precompile, folder) if folder.exists() else None
        try:
            run_compiler(f"-I{folder}", *arguments)
        except ToolchainError:
            header = folder / f"{_HEADER}.gch"
            if not header.exists():
                raise
            run_compiler(*arguments)
            header.unlink(missing_ok=True)  # without it the program compiles, so it is damaged
    if precompiled is not None:
        precompiled.result()
    _use(folder)
    _log.debug("compiled %s", library)


def _precompile(folder: Path) -> None:
    """Makes the precompiled header if it is missing. It appears by rename, so it is always complete. Programs compile
    without it too."""
    header = folder / f"{_HEADER}.gch"
    if header.exists():
        return
    try:
        with tempfile.TemporaryDirectory(prefix=f"{header.name}.", dir=folder) as draft:
            made = Path(draft) / header.name
            run_compiler("-x", "c++-header", f"-I{RUNTIME}", str(RUNTIME / _HEADER), "-o", str(made))
            made.rename(header)
    except (ToolchainError, OSError) as error:
        _log.warning("no precompiled header, so programs take longer to compile: %s", error)


@cache
def _control_plane() -> Path:
    """The library that was built with this package. Raises ToolchainError unless it was built from the present
    sources."""
    spec = importlib.util.find_spec("inagg_switch._ports")
    folder = Path(spec.origin).parent if spec is not None and spec.origin is not None else _PACKAGE
    try:
        lines = (folder / _SOURCES).read_text().splitlines()
    except OSError as error:
        raise ToolchainError("inagg_switch is not built: install it with pip, or make setup") from error
    for built, name in (line.split() for line in lines):
        if hashlib.sha256((RUNTIME / name).read_bytes()).hexdigest() != built:
            raise ToolchainError(f"inagg_switch was built before {name} changed: make setup builds it again")
    return folder / "libcontrol_plane.a"


def run_compiler(*arguments: str) -> None:
    """Runs the C++ compiler with the flags of generated code, then `arguments`. Raises ToolchainError."""
    command = [str(cpp_compiler()), *_FLAGS, *arguments]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolchainError(f"cannot run {command[0]}: {error}") from error
    if done.returncode == 0:
        return
    full = os.strerror(errno.ENOSPC)
    if full in done.stderr:
        temporary = next((os.environ[name] for name in _TEMPORARY if os.environ.get(name)), "/tmp")
        raise ToolchainError(f"{command[0]}: {full} in {cache_folder()} or {temporary}")
    errors = (line for line in done.stderr.splitlines() if "error" in line)
    first = next(errors, done.stderr.strip()[-500:])
    raise ToolchainError(f"{' '.join(command)} failed: {first}\nThis is a bug in inagg_switch.")


def _runtime_folder() -> Path:
    """The folder of the precompiled header. It appears with the first program."""
    return cache_folder() / f"runtime-{_runtime_key()}"


def _use(folder: Path) -> None:
    """Marks the folder as used, and removes the folders that were not used recently."""
    folder.mkdir(parents=True, exist_ok=True)
    os.utime(folder)
    by_use = sorted(cache_folder().glob("runtime-*"), key=lambda f: f.stat().st_mtime)
    for unused in by_use[:-_RUNTIMES_KEPT]:
        shutil.rmtree(unused, ignore_errors=True)


def _compiler_identity() -> str:
    path = cpp_compiler()
    status = path.stat()
    return f"{path} {status.st_size} {status.st_mtime_ns}"


@cache
def _runtime_key() -> str:
    """The cache key of the precompiled header."""
    built = _control_plane().with_name(_SOURCES).read_bytes()
    return _digest(built, _compiler_identity().encode(), " ".join(_FLAGS).encode(), _cpu().encode())


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
        digest.update(b"\0")
    return digest.hexdigest()[:32]


@cache
def _cpu() -> str:
    """The lines of /proc/cpuinfo that decide what -march=native means."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    wanted = ("model name", "flags", "cpu family", "model\t", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))
