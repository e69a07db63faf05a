# SPDX-License-Identifier: Apache-2.0
"""Files for the user: results, logs, reports. Under sudo they belong to the user who called sudo.

The code that creates a file or folder hands it over. Existing files keep their owner.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from inagg_testbed.errors import ConfigurationError


@contextmanager
def handing_over(*paths: Path) -> Iterator[None]:
    """Hand over those of `paths` that the block creates, folders with their contents. Without sudo, do nothing."""
    made = [path for path in paths if not os.path.lexists(path)]
    try:
        yield
    finally:
        for path in made:
            _hand_over(path)


def make_folder(folder: Path) -> None:
    """Make a folder and its parents. Raises ConfigurationError if that fails."""
    try:
        with handing_over(*reversed([folder, *folder.parents])):
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"cannot make the folder {folder}: {error.strerror}") from error


def check_writable(path: Path) -> None:
    """Raise ConfigurationError if a file cannot be written. Makes its folder; leaves the file as it was."""
    make_folder(path.parent)
    existed = os.path.lexists(path)
    try:
        path.open("a").close()
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror}") from error
    if not existed:
        path.unlink()


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """A block that writes a file. Raises ConfigurationError with the path, which an OSError of a full disk lacks."""
    try:
        yield
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror}") from error


def write_text(path: Path, text: str) -> None:
    """Write a file. Raises ConfigurationError."""
    with writing(path), handing_over(path):
        path.write_text(text)


def _hand_over(path: Path) -> None:
    user, group = os.environ.get("SUDO_UID"), os.environ.get("SUDO_GID")
    if user is None or group is None or not os.path.lexists(path):
        return
    inside = (Path(folder, name) for folder, folders, files in os.walk(path) for name in (*folders, *files))
    for each in (path, *inside):
        os.chown(each, int(user), int(group), follow_symlinks=False)
