# SPDX-License-Identifier: Apache-2.0
"""Finds p4/inagg.p4, the program of the switch, and p4/bridge.p4, which only forwards.

A wheel has copies of them inside this package (the root CMakeLists.txt puts them there). A clone has them in p4/, where
an editable installation finds them too.
"""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_INSTALLED = _PACKAGE / "p4"


def inagg_p4() -> Path:
    """The path of inagg.p4. Its includes are in the folder include/ beside it."""
    return _folder() / "inagg.p4"


def bridge_p4() -> Path:
    """The path of bridge.p4. Its includes are in the folder include/ beside it."""
    return _folder() / "bridge.p4"


def _folder() -> Path:
    return _INSTALLED if _INSTALLED.is_dir() else _PACKAGE.parents[1] / "p4"
