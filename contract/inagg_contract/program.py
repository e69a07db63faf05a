# SPDX-License-Identifier: Apache-2.0
"""Finds p4/inagg.p4, the program of the switch.

A wheel has a copy of it inside this package (the root CMakeLists.txt puts it there). A clone has it in p4/, where
an editable installation finds it too.
"""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_INSTALLED = _PACKAGE / "p4"


def inagg_p4() -> Path:
    """The path of inagg.p4. Its includes are in the folder include/ beside it."""
    folder = _INSTALLED if _INSTALLED.is_dir() else _PACKAGE.parents[1] / "p4"
    return folder / "inagg.p4"
