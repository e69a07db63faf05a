# SPDX-License-Identifier: Apache-2.0
"""Trains under each architecture in turn on one testbed, and goes on where an earlier run was interrupted."""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from inagg_testbed.compare.figures import ComparisonFigures, RunFigures, summarise
from inagg_testbed.compare.plan import MODELS, Compare
from inagg_testbed.compare.surroundings import Watch
from inagg_testbed.compare.ways import Way
from inagg_testbed.errors import ConfigurationError
from inagg_testbed.files import make_folder, write_text
from inagg_testbed.network.testbed import Testbed
from inagg_testbed.network.training_run import OnProgress
from inagg_testbed.network.workers import Event
from inagg_testbed.report.machine import machine_description
from inagg_testbed.report.record import command_line, first_problem

_START_UP_S, _SLOWEST_STEP_S = 180.0, 60.0
_PROGRAM_S = 24 * 3600.0  # how long a program may take


class Folder:
    """Where a comparison's figures are: settings.json, and a file of each run that has ended.

    Raises ConfigurationError if they are of another comparison.
    """

    def __init__(self, path: Path, compare: Compare) -> None:
        self.path = path
        make_folder(path)
        make_folder(path / "runs")
        wanted, file = compare.settings(), path / "settings.json"
        found = _read_settings(file) if any((path / "runs").iterdir()) else wanted
        if changed := "; ".join(_changes(found, wanted)):
            raise ConfigurationError(
                f"{path} has another comparison ({changed}): give another folder with --results, or delete it"
            )
        write_text(file, json.dumps(wanted, indent=2) + "\n")

    def _file(self, way: Way, repeat: int) -> Path:
        return self.path / "runs" / f"{way.slug}-{repeat}.json"

    def load(self, way: Way, repeat: int) -> RunFigures | None:
        """A run that has ended."""
        file = self._file(way, repeat)
        if not file.exists():
            return None
        try:
            return RunFigures.model_validate_json(file.read_text())
        except ValidationError as error:
            raise ConfigurationError(
                f"{file}: {first_problem(error)}; delete it, and it is measured again"
            ) from error

    def save(self, way: Way, figures: RunFigures) -> None:
        """A run has ended."""
        write_text(self._file(way, figures.repeat), figures.model_dump_json(indent=1) + "\n")

    def write_all(self, compare: Compare) -> ComparisonFigures:
        """Write compare.json, of the runs that have ended."""
        figures = ComparisonFigures(
            settings=compare.settings(),
            machine=machine_description(),
            command=command_line(),
            runs=results(compare, self),
        )
        write_text(self.path / "compare.json", figures.model_dump_json(indent=1) + "\n")
        return figures


def _changes(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[str]:
    """What has changed, for people."""
    for name, value in wanted.items():
        if (before := found.get(name)) == value:
            continue
        if name == "program_sha256":
            if found.get("program") == wanted["program"]:
                yield f"{Path(wanted['program'][0]).name} has changed since"
        else:
            yield f"{name} was {_said(before)}, and is {_said(value)}"


def _said(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else "none" if value is None else str(value)


def _read_settings(file: Path) -> dict[str, Any]:
    """Those of the runs in a folder. Raises ConfigurationError."""
    try:
        found: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{file} cannot be read ({error}): give another folder with --results"
        ) from error
    return found


def missing(compare: Compare, folder: Folder) -> list[tuple[Way, int]]:
    """The runs that have not ended, repeat by repeat."""
    return [(way, repeat) for way, repeat in _order(compare) if folder.load(way, repeat) is None]


def _order(compare: Compare) -> Iterator[tuple[Way, int]]:
    """Repeat by repeat, so that what changes on the machine with time hits all architectures."""
    for repeat in range(compare.repeats):
        for way in compare.ways:
            yield way, repeat


def results(compare: Compare, folder: Folder) -> list[RunFigures]:
    """The figures of the runs that have ended."""
    found = [folder.load(way, repeat) for way, repeat in _order(compare)]
    return [figures for figures in found if figures is not None]


def run_compare(compare: Compare, folder: Folder, testbed: Testbed, on_progress: OnProgress) -> None:
    """Do the runs that are missing on a testbed that is up. Raises LauncherError; what has ended stays."""
    for way, repeat in missing(compare, folder):
        expected = compare.steps or max((run.steps for run in results(compare, folder)), default=0)
        folder.save(way, train(compare, testbed, way, repeat, expected, on_progress))


def train(
    compare: Compare, testbed: Testbed, way: Way, repeat: int, expected: int, on_progress: OnProgress
) -> RunFigures:
    """Train once. expected: steps, as far as they are known. Raises LauncherError."""
    label = f"{way}, {repeat + 1} of {compare.repeats}" if compare.repeats > 1 else str(way)
    seed = compare.seed + repeat
    on_progress(label, 0, expected, "starting")
    events: list[tuple[int, Event]] = []

    watch = Watch(testbed)

    def on_event(rank: int, event: Event) -> None:
        watch.on_event(rank, event)
        events.append((rank, event))
        if rank == 0 and event["event"] == "step":
            loss = "" if event["loss"] is None else f"loss {event['loss']:.3f}"
            done = event["step"] + 2  # the first step has no event
            on_progress(label, done, max(done, expected) if expected else 0, loss)

    group = testbed.launch(
        _command(compare, way, seed),
        name=f"{way.slug}-{repeat}-{len(testbed.groups)}",
        environment=way.environment(),
    )
    patience_s = _PROGRAM_S if compare.model is None else _START_UP_S + expected * _SLOWEST_STEP_S
    group.follow(on_event, timeout_s=patience_s, watch=testbed.services)
    figures = summarise(compare, way, repeat, seed, events, watch.ended())
    on_progress(label, figures.steps, figures.steps, f"{figures.seconds:.1f} s")
    return figures


def _command(compare: Compare, way: Way, seed: int) -> list[str]:
    command = [sys.executable, "-m", "inagg_testbed.compare.rank", "--with", way.text, "--events", "{events}"]
    command += ["--racks", json.dumps(compare.racks), "--seed", str(seed)]
    if compare.model is None:
        return [*command, "--", *compare.program]
    command += ["--model", compare.model, "--steps", str(compare.steps)]
    command += ["--judge-every", str(MODELS[compare.model].judge_every)]
    command += [] if compare.mesh is None else ["--mesh", str(compare.mesh)]
    return [*command, *([] if compare.until is None else ["--target", str(compare.until.value)])]
