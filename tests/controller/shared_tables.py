# SPDX-License-Identifier: Apache-2.0
"""Jobs on shared slots, in virtual time: hosts, and entries."""

from inagg_controller.fabric.topology import Host, Place, Topology
from inagg_controller.switch.entries import (
    JobEntries,
    TableEntry,
)
from tests.controller.serving import STAR

# STAR with the hosts of the servers a to d: a, b and c at port 4, d without a MAC address.
HOSTS = Topology(
    STAR.switches,
    hosts=(
        *STAR.hosts,
        *(Host(name, 0x0A000100 + ord(name), 0x02000000AA00 + ord(name), Place("s1", 4)) for name in "abc"),
        Host("d", 0x0A000164, None, Place("s1", 4)),
    ),
)


def values(made: JobEntries, table: str) -> list[tuple[dict[str, int], dict[str, int]]]:
    """(match, parameters) of each entry in a table."""
    return [
        (dict(entry.match), dict(entry.params))
        for stage in made.stages
        for entry in stage
        if isinstance(entry, TableEntry) and entry.table == table
    ]
