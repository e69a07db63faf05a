# SPDX-License-Identifier: Apache-2.0
"""report.json: what is written is read again, and what is not a report is refused with what is there."""

import json
import math
from pathlib import Path

import pytest

from inagg_testbed.errors import ConfigurationError
from inagg_testbed.report.record import FILE, Record, named_runs, read_record, write_record

FIGURES = {"rows": [{"bound": math.inf, "ms": 1.5}], "logs": "logs"}


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    record = Record("allreduce", FIGURES)
    write_record(tmp_path, record)
    assert read_record(tmp_path) == record
    assert set(record.machine) >= {"CPU", "kernel", "torch"}


def test_the_file_is_json_that_browsers_read(tmp_path: Path) -> None:
    write_record(tmp_path, Record("demo", {"losses": [math.nan, -math.inf], "logs": Path("logs")}))

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    found = json.loads((tmp_path / FILE).read_text(), parse_constant=refuse)
    assert found["figures"] == {"losses": ["NaN", "-Infinity"], "logs": "logs"}
    assert math.isnan(read_record(tmp_path).figures["losses"][0])


def test_an_error_says_what_is_in_a_folder_instead(tmp_path: Path) -> None:
    def refused(folder: Path) -> str:
        with pytest.raises(ConfigurationError) as error:
            read_record(folder)
        return str(error.value)

    assert (
        "`inagg demo`, `inagg compare`, `inagg bench allreduce` and `inagg bench suite` write it"
        in refused(tmp_path)
    )
    assert refused(tmp_path).endswith("the folder is empty")
    (tmp_path / "summary.json").write_text("{}")
    (tmp_path / "bench.log").write_text("")
    assert refused(tmp_path).endswith("the folder has bench.log, summary.json")
    for number in range(10):
        (tmp_path / f"a{number}").touch()
    assert refused(tmp_path).endswith("a6, a7 and 4 more")
    assert refused(tmp_path / "gone").endswith("there is no such folder")
    assert refused(tmp_path / "bench.log").endswith("this is a file: name its folder")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "Invalid JSON"),
        ("[]", "Input should be"),
        ('{"figures": {}}', "kind: Field required"),
        (
            '{"kind": "game", "figures": {}}',
            "kind: Input should be 'demo', 'allreduce', 'suite' or 'compare'",
        ),
    ],
)
def test_a_file_that_is_no_report_is_refused(tmp_path: Path, content: str, problem: str) -> None:
    (tmp_path / FILE).write_text(content)
    with pytest.raises(ConfigurationError) as error:
        read_record(tmp_path)
    assert str(tmp_path / FILE) in str(error.value)
    assert problem in str(error.value)


def test_several_runs_are_named_by_their_folders(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a/demo", "b/demo", "a/tree")]
    for folder in folders:
        folder.mkdir(parents=True)
        write_record(folder, Record("demo", {}))
    assert [run.named("gloo") for run in named_runs(folders[:1])] == ["gloo"]
    assert [run.named("gloo") for run in named_runs([folders[0], folders[2]])] == ["demo: gloo", "tree: gloo"]
    assert [run.name for run in named_runs(folders[:2])] == [str(folder) for folder in folders[:2]]
    with pytest.raises(ConfigurationError, match="a run is given twice"):
        named_runs([folders[0], folders[0]])
