# SPDX-License-Identifier: Apache-2.0
"""The machine on which a testbed is, for reports."""

import os
import platform
from importlib import metadata
from pathlib import Path


def machine_description() -> dict[str, str]:
    """The machine on which the figures were measured, by property."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "CPU": f"{model}, {os.cpu_count()} cores",
        "memory": f"{memory:.0f} GiB",
        "kernel": f"Linux {platform.release()}",
        "Python": platform.python_version(),
        "torch": _version("torch"),
        "scikit-learn": _version("scikit-learn"),
        "Mininet": _version("mininet"),
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # modules on the path, without a package
        return "version unknown"
