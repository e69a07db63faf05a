# SPDX-License-Identifier: Apache-2.0
"""The commands of p4c and BMv2, for tests that compare with them. Ours of the same names (`inagg-switch shims`) do not
count."""

import shutil
import subprocess
from functools import cache


@cache
def bmv2_command(name: str) -> str | None:
    """The path of a command on PATH; None if it is missing, or one of ours."""
    path = shutil.which(name)
    if path is None:
        return None
    shown = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    return None if "inagg" in shown else path
