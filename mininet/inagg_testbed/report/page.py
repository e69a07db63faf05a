# SPDX-License-Identifier: Apache-2.0
"""Writes a page as one HTML file: style, script, pictures and figures are in it, and it loads nothing."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2

from inagg_testbed.errors import ConfigurationError
from inagg_testbed.files import write_text
from inagg_testbed.report import fabric
from inagg_testbed.report.parts import FabricPicture, Page
from inagg_testbed.report.record import PAGE, Kind, Record, Run, write_record

_LOADER = jinja2.PackageLoader("inagg_testbed.report")
_SCRIPTS = ("chart.js", "pictures.js", "page.js")  # each uses the names of those before it
Contents = Callable[[Sequence[Run]], Page]


def page_of(runs: Sequence[Run], contents: Mapping[Kind, Contents]) -> Page:
    """One page of runs. contents: by kind what makes the page of runs of that kind, without environment and data.

    Raises ConfigurationError, from `contents`, for figures that are not of their kind.
    """
    kinds = dict.fromkeys(run.record.kind for run in runs)
    page = _joined(
        [_page(contents[kind], [run for run in runs if run.record.kind == kind]) for kind in kinds]
    )
    return replace(
        page,
        environment=[*_environment(runs), *page.environment],
        commands=[run.named(shlex.join(run.record.command)) for run in runs],
        data=_data(runs),
    )


def _page(contents: Contents, runs: Sequence[Run]) -> Page:
    """The page of runs of one kind. Raises ConfigurationError for figures that are not of this kind."""
    try:
        return contents(runs)
    except (KeyError, TypeError, ValueError) as error:
        kind = runs[0].record.kind
        raise ConfigurationError(
            f"not the figures of {kind}, or of another version of inagg: {error!r}"
        ) from error


def write_report(folder: Path, record: Record, contents: Mapping[Kind, Contents]) -> Path:
    """Write a run's record and its page into a folder; return the page's path. Raises ConfigurationError."""
    write_record(folder, record)
    write_text(folder / PAGE, render(page_of([Run("", record)], contents)))
    return folder / PAGE


def render(page: Page) -> str:
    """The page as HTML. All texts are escaped, those in JSON too."""
    environment = jinja2.Environment(
        loader=_LOADER,
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )

    def source(name: str) -> str:
        return _LOADER.get_source(environment, name)[0]

    return environment.get_template("page.html.j2").render(
        page=page,
        css=source("page.css"),
        js="\n".join(source(name) for name in _SCRIPTS),
        drawings=_drawings,
    )


def _drawings(part: FabricPicture) -> list[fabric.Drawing]:
    most = fabric.busiest(part.panels)
    return [fabric.draw(part.fabric, panel, most) for panel in part.panels]


def _joined(pages: Sequence[Page]) -> Page:
    """One page with the contents of several."""
    return replace(
        pages[0],
        title="; ".join(page.title for page in pages),
        subtitle="; ".join(page.subtitle for page in pages),
        summary=[text for page in pages for text in page.summary],
        verdicts=[one for page in pages for one in page.verdicts],
        notices=[text for page in pages for text in page.notices],
        sections=[section for page in pages for section in page.sections],
        environment=[entry for page in pages for entry in page.environment],
    )


def _environment(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Properties of the machine, inagg's version and the time. What differs is given by run."""
    known = [{"date": run.record.when, "inagg": run.record.inagg, **run.record.machine} for run in runs]
    found = []
    for name in dict.fromkeys(name for one in known for name in one):
        values = [one.get(name, "unknown") for one in known]
        if len(set(values)) == 1:
            found.append((name, values[0]))
        else:
            found += [(run.named(name), value) for run, value in zip(runs, values, strict=True)]
    return found


def _data(runs: Sequence[Run]) -> dict[str, Any]:
    """The document of the only run, or those of several by name."""
    documents = {run.name: run.record.document() for run in runs}
    return documents[runs[0].name] if len(runs) == 1 else documents
