# SPDX-License-Identifier: Apache-2.0
"""The testbed's requirements on the machine, and how to meet them."""

import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from inagg_testbed.errors import MissingRequirementError

_COMMANDS = {
    "mnexec": "apt-get install mininet",
    "ip": "apt-get install iproute2",
    "tc": "apt-get install iproute2",
    "ethtool": "apt-get install ethtool",
    "setpriv": "apt-get install util-linux",
    "ifconfig": "apt-get install net-tools",
}
SummingSwitchKind = Literal["model", "bmv2"]
SwitchKind = Literal[SummingSwitchKind, "bridge"]
BridgeKind = Literal["linux", "model"]  # what forwards on gloo's own links
_BMV2_COMMANDS = ("p4c-bm2-ss", "simple_switch_grpc")


@dataclass(frozen=True)
class Requirement:
    """One requirement: whether it is present, its remedy, and the only kind of switch that needs it (None: all)."""

    name: str
    present: bool
    remedy: str
    switch: SwitchKind | None = None


def requirements() -> Iterator[Requirement]:
    """All requirements, checked on this machine."""
    yield Requirement("Linux", sys.platform == "linux", "the testbed needs Linux network namespaces")
    root = os.geteuid() == 0
    yield Requirement("root", root, "run it with sudo -E, from the same virtual environment")
    for command, remedy in _COMMANDS.items():
        yield Requirement(command, shutil.which(command) is not None, remedy)
    if root:  # nobody else can make network namespaces
        yield _namespaces()
    yield _mininet()
    yield Requirement(
        "g++", shutil.which("g++") is not None, "apt-get install g++ (the switch model compiles P4)", "model"
    )
    for command in _BMV2_COMMANDS:
        remedy = "only for --switch bmv2: build p4c and behavioral-model and put them on PATH"
        yield Requirement(command, _is_bmv2(shutil.which(command)), remedy, "bmv2")


def _is_bmv2(command: str | None) -> bool:
    """Whether a command is there, and not one that `inagg-switch shims` wrote."""
    if command is None:
        return False
    shown = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
    return "inagg" not in shown.stdout


def _mininet() -> Requirement:
    """Try whether this Python can import Mininet."""
    try:
        importlib.import_module("inagg_testbed.network._mininet")
    except MissingRequirementError as error:
        return Requirement("Mininet for this Python", False, str(error))
    return Requirement("Mininet for this Python", True, "")


def _namespaces() -> Requirement:
    """Try to make a network namespace as Mininet does; this often fails in containers and chroots."""
    try:
        probe = subprocess.run(["mnexec", "-n", "true"], capture_output=True, text=True, check=False)
    except OSError as error:
        return Requirement("network namespaces", False, f"mnexec cannot be run: {error.strerror}")
    remedy = (
        f"`mnexec -n true` says: {probe.stderr.strip()}; a container must be privileged; a chroot does not work,"
        " because joining a namespace leaves it (use systemd-nspawn or pivot_root)"
    )
    return Requirement("network namespaces", probe.returncode == 0, remedy)


def has_netem() -> bool:
    """Whether the kernel can delay packets on a link: tried in a network namespace that ends with the command."""
    command = ["mnexec", "-n", "tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def check_requirements(switch: SwitchKind) -> None:
    """Raise MissingRequirementError that names everything missing for a testbed with this switch."""
    missing = [
        f"{need.name}: {need.remedy}"
        for need in requirements()
        if not need.present and need.switch in (None, switch)
    ]
    if missing:
        raise MissingRequirementError("this machine lacks\n" + "\n".join(f"  {line}" for line in missing))
