# SPDX-License-Identifier: Apache-2.0
"""The programs of examples/, parts of which commands train with."""

import runpy
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).resolve().parent
# A wheel has the examples inside this package, a clone has them beside mininet/.
_INSTALLED = _PACKAGE / "examples"
_EXAMPLES = _INSTALLED if _INSTALLED.is_dir() else _PACKAGE.parents[1] / "examples"


def example(name: str) -> dict[str, Any]:
    """The names that examples/NAME.py defines."""
    return runpy.run_path(str(_EXAMPLES / f"{name}.py"))
