# SPDX-License-Identifier: Apache-2.0
"""The environment of the libraries: its own folder, on top of the project's and of the system's packages, as the
project's environment is. torch is the project's."""

import os
import shutil
import site
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from tests import ROOT
from tests.trainers.catalog import Trainer

FOLDER = ROOT / "build" / "trainers" / "venv"
PYTHON = FOLDER / "bin" / "python"
_CONSTRAINTS = FOLDER.with_name("constraints.txt")


class NotInstalledError(Exception):
    """pip could not install a library. The message is pip's last line."""


def create(again: bool) -> None:
    """Create the environment, or take the one that is there. again: remove that one first."""
    if again:
        shutil.rmtree(FOLDER, ignore_errors=True)
    if not PYTHON.is_file():
        subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", str(FOLDER)], check=True)
    projects = [path for path in site.getsitepackages() if Path(path).is_relative_to(sys.prefix)]
    lines = [f"import site; site.addsitedir({path!r})" for path in projects]
    (_packages() / "project.pth").write_text("\n".join(lines) + "\n")
    # Only the project's own torch has a local version such as +cpu; pip would look for a release of that name.
    _CONSTRAINTS.write_text(f"torch=={version('torch').partition('+')[0]}\n")


def install(trainer: Trainer) -> None:
    """Install a library.

    Raises:
        NotInstalledError: pip has failed.
    """
    pip = [str(PYTHON), "-m", "pip", "install", "--quiet", "--constraint", str(_CONSTRAINTS)]
    done = subprocess.run(
        [*pip, *(["--no-deps"] if trainer.complete else []), *trainer.requirements],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if "rror" in line]
        raise NotInstalledError(errors[-1].strip() if errors else f"pip ended with status {done.returncode}")
    for path in trainer.needs_cuda:
        shutil.rmtree(_packages() / path, ignore_errors=True)


def _packages() -> Path:
    (packages,) = FOLDER.glob("lib/python*/site-packages")
    return packages


def environment() -> dict[str, str]:
    """The environment of programs that use it: nothing is downloaded, and DeepSpeed compiles into the build folder."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("INAGG_")},
        "PATH": f"{PYTHON.parent}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TORCH_EXTENSIONS_DIR": str(FOLDER.with_name("extensions")),
    }
