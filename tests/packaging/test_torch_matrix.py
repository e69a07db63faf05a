# SPDX-License-Identifier: Apache-2.0
"""What `make torch-matrix` runs by default, and what it makes of the results."""

import re
import subprocess
import sys
from pathlib import Path

from inagg.torch_versions import NEWEST, OLDEST, release
from tests import ROOT
from tests.packaging.torch_matrix import Row, counts, requirements_without_torch, table

OUTCOMES = """
import pytest
def test_passes(): pass
def test_passes_too(): pass
def test_fails(): assert False
@pytest.fixture
def broken(): raise OSError
def test_errs(broken): pass
@pytest.mark.skip(reason="none")
def test_is_skipped(): pass
"""


def test_every_release_of_the_range_is_tried_by_default() -> None:
    (listed,) = re.findall(r"^VERSIONS \?= (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    tried = [release(version) for version in listed.split()]
    (major, oldest), (_, newest) = OLDEST, NEWEST
    assert tried == [(major, minor) for minor in range(oldest, newest + 1)]


def test_only_torch_and_its_triton_differ() -> None:
    listed, constraints = requirements_without_torch()
    assert "numpy" in listed
    assert "pytest" in listed
    removed = {one for one in (ROOT / "constraints.txt").read_text().splitlines() if one not in constraints}
    assert {one.partition("==")[0] for one in removed} == {"torch", "triton"}
    assert not any(re.match(r"torch\W", one) for one in listed)


def test_tests_are_counted_as_pytest_reports_them(tmp_path: Path) -> None:
    (tmp_path / "test_outcomes.py").write_text(OUTCOMES)
    junit = tmp_path / "junit.xml"
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", f"--junitxml={junit}", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert counts(junit) == (2, 2, 1)


def test_a_release_is_good_if_tests_passed_and_none_failed_or_if_it_must_be_refused() -> None:
    rows = [
        Row("2.11.0", "2.11.0+cu130", passed=5, again=2, skipped=1, seconds=120.0),
        Row("2.12.1", "2.12.1+cpu", passed=5, failed=1),
        Row("2.13.0", "2.13.0+cpu"),
        Row("2.14.1", problem="not installed"),
        Row("2.6.0", "2.6.0+cu124", refused=True),
        Row("2.5.1", "2.5.1+cu124", problem="not refused"),
    ]
    assert [row.good for row in rows] == [True, False, False, False, True, False]
    assert table(rows).splitlines() == [
        "torch    build            passed again failed skipped  min  outcome",
        "2.11.0   2.11.0+cu130          5     2      0       1    2  ok",
        "2.12.1   2.12.1+cpu            5     0      1       0    0  FAILED",
        "2.13.0   2.13.0+cpu            0     0      0       0    0  FAILED",
        "2.14.1                         0     0      0       0    0  not installed",
        "2.6.0    2.6.0+cu124           0     0      0       0    0  refused, as it must be",
        "2.5.1    2.5.1+cu124           0     0      0       0    0  not refused",
    ]
