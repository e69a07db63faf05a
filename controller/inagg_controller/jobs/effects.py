# SPDX-License-Identifier: Apache-2.0
"""What a driver is to do to switches. It reports each effect to the job table (`SwitchedJobs.done`)."""

from collections.abc import Mapping
from dataclasses import dataclass

from inagg_controller.switch.entries import JobEntries, MulticastGroup


@dataclass(frozen=True, slots=True)
class Install:
    """Insert a placement's entries into its switches, by name, in this order."""

    job: int
    epoch: int
    generation: int
    entries: Mapping[str, JobEntries]


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove a placement's entries from its switches, in reverse order; entries may be missing."""

    job: int
    epoch: int
    generation: int
    entries: Mapping[str, JobEntries]


@dataclass(frozen=True, slots=True)
class Regroup:
    """Change the copies that the switches make of a placement's results."""

    job: int
    epoch: int
    generation: int
    groups: Mapping[str, MulticastGroup]


Effect = Install | Remove | Regroup
