# SPDX-License-Identifier: Apache-2.0
"""The form of secrets, and the file of the operator's token, which the controller and the operator's commands read."""

import os
import re
from pathlib import Path

# The b64token of RFC 6750, 2.1: what a header can have after "Bearer".
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")


def is_token(text: str) -> bool:
    """Whether a header can carry this as a secret."""
    return _TOKEN.fullmatch(text) is not None


def default_token_file() -> Path:
    """The default of --token-file."""
    if os.geteuid() == 0:
        return Path("/var/lib/inagg/controller.token")
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "inagg" / "controller.token"
