# SPDX-License-Identifier: Apache-2.0
"""Fabrics with the bytes on their links."""

from collections.abc import Sequence
from dataclasses import dataclass

from inagg_testbed.network.fabric import Fabric
from inagg_testbed.network.traffic import LinkBytes
from inagg_testbed.report.parts.tables import Cell, Column, Table, megabytes_cell

BYTES_OF_A_RUN = (
    "10^6 bytes towards the upper end (↑) and from it (↓), from the start of a run's processes to their end, as the"
    " kernel counts them at the switches' interfaces. Wide and dark lines carry most."
)


@dataclass(frozen=True)
class Panel:
    """A run, with the bytes on each link of the fabric."""

    label: str
    links: Sequence[LinkBytes]


@dataclass(frozen=True)
class FabricPicture:
    """A fabric with the bytes on its links: one small picture for each run."""

    title: str
    fabric: Fabric
    panels: Sequence[Panel]
    about: str = ""

    def table(self) -> Table:
        """The picture in figures."""
        columns = [Column("run", False), Column("lower end", False), Column("upper end", False)]
        rows = [
            [
                Cell(panel.label),
                Cell(link.lower),
                Cell(link.upper),
                *map(megabytes_cell, (link.up, link.down)),
            ]
            for panel in self.panels
            for link in panel.links
        ]
        return Table("MB on each link", [*columns, Column("up MB"), Column("down MB")], rows)
