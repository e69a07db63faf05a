# SPDX-License-Identifier: Apache-2.0
"""Pages, and what has no picture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inagg_testbed.report.parts.charts import Bars, Plot
from inagg_testbed.report.parts.fabrics import FabricPicture
from inagg_testbed.report.parts.tables import Table
from inagg_testbed.report.parts.timelines import Timeline


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Definitions:
    """Terms, each with its definition."""

    terms: Sequence[tuple[str, str]]


Picture = Plot | Bars | Timeline
Part = Picture | FabricPicture | Table | Text | Definitions


@dataclass(frozen=True)
class Section:
    """A heading with what is below it."""

    title: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class Verdict:
    """A claim that was tested: whether it holds, and what was found."""

    good: bool
    text: str


@dataclass(frozen=True)
class Page:
    """A page. summary: sentences. notices: what a reader must know before the figures. environment: by property."""

    title: str
    subtitle: str
    summary: Sequence[str]
    sections: Sequence[Section]
    verdicts: Sequence[Verdict] = ()
    notices: Sequence[str] = ()
    environment: Sequence[tuple[str, str]] = ()
    commands: Sequence[str] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
