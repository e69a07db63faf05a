# SPDX-License-Identifier: Apache-2.0
"""Drivers of the switch's native code, with the address and undefined behaviour sanitizers: an error ends them."""

import subprocess
from collections.abc import Iterable
from pathlib import Path

from tests.switch import NATIVE

HERE = Path(__file__).parent
OPTIONS = ("-std=c++20", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined")


def build(folder: Path, driver: str, sources: Iterable[str]) -> Path:
    """The program of a driver beside this file and of native sources, by their names without `.cpp`."""
    binary = folder / "driver"
    files = [HERE / driver, *(NATIVE / f"{name}.cpp" for name in sources)]
    options = [*OPTIONS, "-fno-sanitize-recover=all", f"-I{NATIVE}"]
    subprocess.run(["g++", *options, *map(str, files), "-o", str(binary)], check=True, timeout=240)
    return binary
