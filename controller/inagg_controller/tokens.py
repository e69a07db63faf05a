# SPDX-License-Identifier: Apache-2.0
"""Secrets: one for each job, and the operator's token in a file that only its owner can read."""

import contextlib
import hmac
import os
import secrets
from pathlib import Path

from inagg_contract.tokens import is_token
from inagg_controller.errors import ConfigurationError

_SHORTEST = 16
_OTHERS = 0o077


def new_secret() -> str:
    """256 random bits, as text for an HTTP header."""
    return secrets.token_urlsafe(32)


def same(presented: str, expected: str) -> bool:
    """Whether two secrets are equal, compared in constant time."""
    return hmac.compare_digest(presented.encode(), expected.encode())


def operators_token(path: Path) -> str:
    """The token in the file. If the file does not exist, make it with a new token. Raises ConfigurationError."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make(path)
        with path.open() as file:
            mode = os.fstat(file.fileno()).st_mode
            token = file.read(4096).strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"--token-file {path}: {reason}") from error
    if mode & _OTHERS:
        raise ConfigurationError(
            f"--token-file {path}: others can read it; make a new token, or run `chmod 600 {path}`"
        )
    if len(token) < _SHORTEST or not is_token(token):
        raise ConfigurationError(
            f"--token-file {path}: not a token of at least {_SHORTEST} letters, digits and ._~+/-; remove the file "
            "and the controller makes a new one"
        )
    return token


def _make(path: Path) -> None:
    """Make the file unless it exists. No process ever sees it empty or readable by others, even if two make it."""
    if path.exists():
        return
    scratch = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{new_secret()}\n")
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(scratch)
    finally:
        scratch.unlink()
