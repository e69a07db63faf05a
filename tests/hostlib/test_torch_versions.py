# SPDX-License-Identifier: Apache-2.0
"""Releases of torch that are too old are refused, newer ones than were tried are named, and methods with two names are
found. `make torch-matrix` runs the tests of the host library with each release."""

import logging
import tomllib

import pytest
import torch.distributed as dist
from packaging.requirements import Requirement
from torch.distributed import distributed_c10d

from inagg import torch_versions
from inagg.errors import ConfigurationError
from tests import ROOT


@pytest.mark.parametrize("version", ["2.6.0", "2.6.0+cu124", "1.13.1", "2.0.1a0+git123"])
def test_an_old_release_is_refused_by_name(version: str) -> None:
    with pytest.raises(ConfigurationError, match="is too old for inagg") as raised:
        torch_versions.refuse_too_old(version)
    assert f"torch {version} " in str(raised.value)
    assert "needs 2.7 or later" in str(raised.value)


@pytest.mark.parametrize("version", ["2.7.0", "2.7.1+cu126", "2.10.0", "2.15.3", "2.16.0", "3.0.0a0+git123"])
def test_a_release_that_is_not_too_old_is_not_refused(version: str) -> None:
    torch_versions.refuse_too_old(version)


def test_a_newer_release_than_was_tried_is_named_in_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            with torch_versions.supported("2.98.0"):
                pass
        with torch_versions.supported("2.15.9"):
            pass
    assert [record.getMessage() for record in caplog.records] == [
        "inagg: torch 2.98.0 is newer than 2.15, the newest release that inagg was tried with"
    ]


def test_a_name_that_a_newer_release_lacks_is_blamed_on_it() -> None:
    with (
        pytest.raises(
            ConfigurationError, match=r"does not work with torch 2\.99\.0.*'_gone'.*Install an older"
        ),
        torch_versions.supported("2.99.0"),
    ):
        dist._gone()  # type: ignore[attr-defined]


def test_with_a_release_that_was_tried_errors_stay_as_they_are() -> None:
    with pytest.raises(AttributeError, match="_gone"), torch_versions.supported("2.13.0"):
        dist._gone()  # type: ignore[attr-defined]


def test_a_method_is_found_by_either_name() -> None:
    for pair in (
        ("all_gather_single", "_allgather_base"),
        ("all_gather_single_coalesced", "allgather_into_tensor_coalesced"),
        ("all_to_all_single", "alltoall_base"),
        ("reduce_scatter_single", "_reduce_scatter_base"),
        ("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"),
    ):
        for name in pair:
            found = torch_versions.method_name(name)
            assert found in pair
            assert callable(getattr(dist.ProcessGroup, found))
    assert torch_versions.method_name("broadcast") == "broadcast"


class _InPython(dist.ProcessGroup):
    pass


def test_the_flight_recorder_sees_other_groups_only(monkeypatch: pytest.MonkeyPatch) -> None:
    attached = []
    monkeypatch.setattr(
        distributed_c10d,
        "_maybe_attach_flight_recorder",
        lambda group, *_: attached.append(group),
        raising=False,
    )
    torch_versions.keep_flight_recorder_from(_InPython)
    ours, other = _InPython(0, 1), dist.ProcessGroup(0, 1)  # type: ignore[call-arg]
    for group in (ours, other):
        distributed_c10d._maybe_attach_flight_recorder(group, None, [0])  # type: ignore[attr-defined]
    assert attached == [other]


def test_pyproject_has_the_same_range() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (torch,) = (
        one for one in map(Requirement, project["optional-dependencies"]["worker"]) if one.name == "torch"
    )
    (oldest, newest), (major, minor) = torch_versions.OLDEST, torch_versions.NEWEST
    assert str(torch.specifier) == f"<{major}.{minor + 1},>={oldest}.{newest}"
