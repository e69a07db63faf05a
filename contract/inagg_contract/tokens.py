# SPDX-License-Identifier: Apache-2.0
"""Where the controller keeps the operator's token, which other commands of the operator read."""

import os
from pathlib import Path


def default_token_file() -> Path:
    """The default of --token-file."""
    if os.geteuid() == 0:
        return Path("/var/lib/inagg/controller.token")
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "inagg" / "controller.token"
