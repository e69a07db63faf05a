# SPDX-License-Identifier: Apache-2.0
"""Finds the C++ compiler. It preprocesses P4 programs and compiles the generated code."""

import os
import shutil
from pathlib import Path

from inagg_switch.errors import ToolchainError


def cpp_compiler() -> Path:
    """$CXX, or g++. Raises ToolchainError if it is not installed."""
    wanted = os.environ.get("CXX") or "g++"
    found = shutil.which(wanted)
    if found is None:
        raise ToolchainError(f"no C++ compiler: {wanted} is not on PATH (Debian: apt install g++)")
    return Path(found).resolve()
