# SPDX-License-Identifier: Apache-2.0
"""What the packages import, by reading their sources."""

import ast
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.utils import canonicalize_name

from tests import ROOT

# The base and the extras, and the packages or modules each is for.
PARTS = {
    "base": ("contract/inagg_contract",),
    "worker": ("hostlib/inagg",),
    "wire": ("wire/inagg_wire",),
    "switch": ("switch/inagg_switch", "p4runtime/inagg_p4runtime"),
    "server": ("hostlib/inagg_server", "hostlib/inagg/membership/control.py"),
    "controller": ("controller/inagg_controller", "p4runtime/inagg_p4runtime"),
    "testbed": ("mininet/inagg_testbed", "baselines/inagg_baselines"),
    "simulator": ("simulator/inagg_simulator",),
    "triton": ("hostlib/inagg/device/by_triton.py", "hostlib/inagg/device/kernels.py"),
    "commands": ("commands/inagg_commands",),
}
# Distributions that another one, on the right, pins or re-exports.
_COME_WITH = {
    "pydantic-core": "pydantic",
    "starlette": "fastapi",
    "googleapis-common-protos": "p4runtime",
    "ipython": "p4runtime-shell",
}


def foreign_modules(part: str) -> set[str]:
    """The top-level modules that the packages of a part import: neither of the standard library nor of inagg."""
    places = [ROOT / name for name in PARTS[part]]
    files = [path for place in places for path in ([place] if place.is_file() else place.rglob("*.py"))]
    assert files
    if part != "triton":  # whose modules are imported only where Triton is
        files = [path for path in files if path not in {ROOT / name for name in PARTS["triton"]}]
    modules = {name for path in files for name in _imports(path)}
    return {name for name in modules - sys.stdlib_module_names if not name.startswith("inagg")}


def distributions(part: str) -> set[str]:
    """The distributions of these modules, as pip names them. Mininet is left out: it is Debian's package."""
    owners = packages_distributions()
    modules = foreign_modules(part) - {"mininet"}
    found = {canonicalize_name(owner) for name in modules for owner in owners[name]}
    return {_COME_WITH.get(name, name) for name in found}


def _imports(path: Path) -> Iterator[str]:
    """Of the absolute imports of a file, wherever in it they stand."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]
