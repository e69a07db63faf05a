# SPDX-License-Identifier: Apache-2.0
"""report.json: all figures of a run, from which its page can be written again.

The file is also the data in the page. Figures that are not finite are the strings "NaN", "Infinity" and "-Infinity".
"""

import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter, ValidationError

from inagg_testbed.errors import ConfigurationError
from inagg_testbed.files import write_text
from inagg_testbed.report.machine import machine_description

FILE, PAGE = "report.json", "report.html"
Kind = Literal["demo", "allreduce", "suite", "compare"]
_WRITERS = "`inagg demo`, `inagg compare`, `inagg bench allreduce` and `inagg bench suite` write it"
_SHOWN = 8  # files that an error names

_Kind = TypeVar("_Kind")


def command_line() -> list[str]:
    """The words of this command."""
    return [Path(sys.argv[0]).name, *sys.argv[1:]]


@dataclass(frozen=True)
class Record:
    """A run. figures: what its kind says. command: the words of the command line. when: local time."""

    kind: Kind
    figures: dict[str, Any]
    command: list[str] = field(default_factory=command_line)
    when: str = field(default_factory=lambda: time.strftime("%Y-%m-%d %H:%M"))
    inagg: str = field(default_factory=lambda: metadata.version("inagg"))
    machine: dict[str, str] = field(default_factory=machine_description)

    def document(self) -> dict[str, Any]:
        """The contents of report.json."""
        found = _jsonable(asdict(self))
        assert isinstance(found, dict)
        return found


@dataclass(frozen=True)
class Run:
    """A record with the name that a page gives it: empty if it is the page's only one."""

    name: str
    record: Record

    def named(self, label: str) -> str:
        """The label of a part of the run, with the run's name before it if the page has several runs."""
        return f"{self.name}: {label}" if self.name else label


def _jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _jsonable(one) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_jsonable(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return str(value) if isinstance(value, Path) else value


def _figures(value: Any) -> Any:
    """The inverse of `_jsonable`, but for paths."""
    if isinstance(value, dict):
        return {key: _figures(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_figures(one) for one in value]
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else value


def write_record(folder: Path, record: Record) -> None:
    """Write report.json into a folder. Raises ConfigurationError."""
    write_text(folder / FILE, json.dumps(record.document(), indent=1) + "\n")


def read_record(folder: Path) -> Record:
    """The record in a folder. Raises ConfigurationError, which says what is there instead."""
    path = folder / FILE
    if not path.is_file():
        raise ConfigurationError(f"{folder}: no {FILE} ({_WRITERS}); {_contents(folder)}")
    found = read_document(path, Record, wrong=f"{{}}; {_WRITERS}")
    return replace(found, figures=_figures(found.figures))


def read_document(path: Path, kind: type[_Kind], wrong: str = "{}") -> _Kind:
    """A file of JSON, as a model of pydantic's or a dataclass.

    wrong: what the error says of a file that is not of this kind, with {} for its first fault. Raises
    ConfigurationError.
    """
    try:
        return TypeAdapter(kind).validate_json(path.read_bytes())
    except ValidationError as error:
        raise ConfigurationError(f"{path}: {wrong.format(first_problem(error))}") from error
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error


def first_problem(error: ValidationError) -> str:
    """Where the first fault of a document is, and which."""
    problem = error.errors()[0]
    where = ".".join(map(str, problem["loc"]))
    return f"{where}: {problem['msg']}" if where else problem["msg"]


def _contents(folder: Path) -> str:
    if not folder.exists():
        return "there is no such folder"
    if not folder.is_dir():
        return "this is a file: name its folder"
    names = sorted(path.name for path in folder.iterdir())
    if not names:
        return "the folder is empty"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"the folder has {', '.join(names[:_SHOWN])}{more}"


def named_runs(folders: Sequence[Path]) -> list[Run]:
    """The runs in folders, named by their folders if there are several. Raises ConfigurationError."""
    records = [read_record(folder) for folder in folders]
    if len(folders) == 1:
        return [Run("", records[0])]
    short = [folder.resolve().name for folder in folders]
    names = short if len(set(short)) == len(short) else [str(folder) for folder in folders]
    if len(set(names)) < len(names):
        raise ConfigurationError(f"{', '.join(names)}: a run is given twice")
    return [Run(name, record) for name, record in zip(names, records, strict=True)]
