# SPDX-License-Identifier: Apache-2.0
"""Runs a part, and keeps what came of it."""

import hashlib
import json
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from tests import ROOT
from tests.nightly.parts import Part

PASSED, FAILED, SKIPPED = "passed", "FAILED", "skipped"
_LAST_LINES = 20  # of a failed part's output, which are shown


@dataclass(frozen=True)
class Outcome:
    """What came of a part. why: it failed or was skipped."""

    verdict: str
    seconds: float
    when: str
    why: str = ""


class Outcomes:
    """Outcomes in a folder, a JSON file a part. state: of the tree; outcomes of another state do not count."""

    def __init__(self, folder: Path, state: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._state = state

    def of(self, name: str) -> Outcome | None:
        """The outcome of a part in this state of the tree; None if it has not run."""
        path = self._folder / f"{name}.json"
        if not path.exists():
            return None
        kept = json.loads(path.read_text())
        return Outcome(**kept["outcome"]) if kept["state"] == self._state else None

    def keep(self, name: str, outcome: Outcome) -> None:
        """Keep an outcome. The file is whole or not there."""
        path = self._folder / f"{name}.json"
        new = path.with_suffix(".new")
        new.write_text(json.dumps({"state": self._state, "outcome": asdict(outcome)}, indent=1) + "\n")
        new.rename(path)


def state_of_tree() -> str:
    """A digest of the commit and of everything that differs from it, files that git does not know included."""
    digest = hashlib.sha256()
    for command in (["rev-parse", "HEAD"], ["diff", "HEAD"]):
        digest.update(_git(*command))
    for name in _git("ls-files", "--others", "--exclude-standard", "-z").split(b"\0"):
        path = ROOT / name.decode()
        if name and path.is_file():
            digest.update(name + b"\0" + path.read_bytes())
    return digest.hexdigest()


def run(part: Part, log: Path) -> Outcome:
    """Run a part; its output goes to `log`, and the end of it here if it fails."""
    when = time.strftime("%Y-%m-%d %H:%M")
    if missing := part.missing():
        return Outcome(SKIPPED, 0.0, when, missing)
    began = time.monotonic()
    with log.open("w") as output:
        status = subprocess.run(part.command, cwd=ROOT, stdout=output, stderr=output, check=False).returncode
    seconds = time.monotonic() - began
    if status == 0:
        return Outcome(PASSED, seconds, when)
    print("\n".join(log.read_text(errors="replace").splitlines()[-_LAST_LINES:]), flush=True)
    return Outcome(FAILED, seconds, when, f"exit status {status}: {log}")


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True).stdout
