# SPDX-License-Identifier: Apache-2.0
"""python -m tests.packaging.release: build a release's sdist and wheel into dist/, check them, and say how to tag it.

pyproject.toml has the version, and the version's section of CHANGELOG.md is the release note. The artefacts are those
of a commit, so the tree must be clean. The checks are the part of `make wheel-test` that needs neither torch nor root.
"""

import hashlib
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from tests import ROOT
from tests.packaging import checks
from tests.packaging.installation import PYTHON, CheckError, Workplace

DIST = ROOT / "dist"
CHECKS = {"server": checks.server, "switch": checks.switch}


def version() -> str:
    found: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    return found


def note(changelog: str, release: str) -> str:
    """The section of a release, without its heading, which has the date.

    Raises:
        CheckError: there is no such section, or it is empty.
    """
    heading = rf"^## {re.escape(release)} \(\d{{4}}-\d\d-\d\d\)\n"
    found = re.search(rf"{heading}(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if found is None or not found[1].strip():
        raise CheckError(f'CHANGELOG.md has no section "## {release} (YEAR-MONTH-DAY)" with a note')
    return found[1].strip() + "\n"


def check_clean(status: str) -> None:
    """Refuse a tree with changes. status: what `git status --porcelain` prints."""
    if status:
        raise CheckError(f"the tree has changes that no commit has; commit or remove them:\n{status}")


def build(release: str) -> list[str]:
    """The lines of `sha256sum` for the artefacts of a release, which are in dist/ afterwards."""
    with Workplace.open() as place:
        sdist = place.build_sdist()
        wheel = place.build(sdist, PYTHON)
        print(f"{wheel.name}: {checks.content(wheel)}", flush=True)
        base = place.install(wheel, "", PYTHON)
        print(f"inagg: {checks.base(base, wheel)}", flush=True)
        for extra, check in CHECKS.items():
            print(f"inagg[{extra}]: {check(place.install(wheel, extra, PYTHON))}", flush=True)
        for built in (sdist, wheel):
            if not built.name.startswith(f"inagg-{release}"):
                raise CheckError(f"{built.name} is not of release {release}")
        DIST.mkdir(exist_ok=True)
        artefacts = [Path(shutil.copy2(built, DIST)) for built in (sdist, wheel)]
    return [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(ROOT)}" for path in artefacts
    ]


def main() -> int:
    release = version()
    status = subprocess.run(
        ["git", "status", "--porcelain"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    try:
        check_clean(status)
        text = note((ROOT / "CHANGELOG.md").read_text(), release)
        sums = build(release)
    except CheckError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    message = DIST / f"v{release}.md"
    message.write_text(f"inagg {release}\n\n{text}")
    print("\n".join(sums))
    print("`make wheel-test` has the checks that need torch and root. Then tag the release:")
    print(f"git tag --annotate --cleanup=verbatim --file {message.relative_to(ROOT)} v{release}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
