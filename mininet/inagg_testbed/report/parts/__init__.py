# SPDX-License-Identifier: Apache-2.0
"""What a page is made of. A command fills these classes with figures; `report.page` writes them as HTML.

Text is plain text everywhere: `report.page` escapes it. Each picture has a `spec`, which pictures.js draws, and a
`table` with the same in figures.
"""

from inagg_testbed.report.parts.charts import SPREAD, Axis, Bars, BarSeries, Mark, Plot, Series, spread
from inagg_testbed.report.parts.fabrics import BYTES_OF_A_RUN, FabricPicture, Panel
from inagg_testbed.report.parts.pages import Definitions, Page, Part, Section, Text, Verdict
from inagg_testbed.report.parts.tables import Best, Cell, Column, Table
from inagg_testbed.report.parts.texts import counts, listed, megabytes
from inagg_testbed.report.parts.timelines import Span, Timeline, TimelineRow

__all__ = [
    "BYTES_OF_A_RUN",
    "SPREAD",
    "Axis",
    "BarSeries",
    "Bars",
    "Best",
    "Cell",
    "Column",
    "Definitions",
    "FabricPicture",
    "Mark",
    "Page",
    "Panel",
    "Part",
    "Plot",
    "Section",
    "Series",
    "Span",
    "Table",
    "Text",
    "Timeline",
    "TimelineRow",
    "Verdict",
    "counts",
    "listed",
    "megabytes",
    "spread",
]
