# SPDX-License-Identifier: Apache-2.0
"""Files for people: results, logs, reports. Under sudo they belong to whoever called it.

Whatever makes a file or folder hands it over itself: nothing that was there before changes its owner.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from inagg_testbed.errors import ConfigurationError


@contextmanager
def handing_over(*paths: Path) -> Iterator[None]:
    """Hand over those of `paths` that the block makes, folders with all they hold. Does nothing without sudo."""
    made = [path for path in paths if not os.path.lexists(path)]
    try:
        yield
    finally:
        for path in made:
            _hand_over(path)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it. Raises ConfigurationError where there can be none."""
    try:
        with handing_over(*reversed([folder, *folder.parents])):
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"cannot make the folder {folder}: {error.strerror}") from error


def check_writable(path: Path) -> None:
    """Find out whether a file can be written, its folder made if need be; the file stays as it was.

    Raises ConfigurationError.
    """
    make_folder(path.parent)
    existed = os.path.lexists(path)
    try:
        path.open("a").close()
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror}") from error
    if not existed:
        path.unlink()


def write_text(path: Path, text: str) -> None:
    """Write a file. Raises ConfigurationError."""
    try:
        with handing_over(path):
            path.write_text(text)
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror}") from error


def _hand_over(path: Path) -> None:
    user, group = os.environ.get("SUDO_UID"), os.environ.get("SUDO_GID")
    if user is None or group is None or not os.path.lexists(path):
        return
    inside = (Path(folder, name) for folder, folders, files in os.walk(path) for name in (*folders, *files))
    for each in (path, *inside):
        os.chown(each, int(user), int(group), follow_symlinks=False)
