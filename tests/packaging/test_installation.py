# SPDX-License-Identifier: Apache-2.0
"""The command that installs an extra names what is installed, whatever pip took it from."""

import json
from importlib.metadata import Distribution
from pathlib import Path

import pytest

from inagg_contract import installation


class _Installed(Distribution):
    version = "9.8.7"

    def __init__(self, origin: object) -> None:
        self.origin = origin

    def read_text(self, filename: str) -> str | None:
        return None if self.origin is None else json.dumps(self.origin)

    def locate_file(self, path: object) -> Path:
        raise AssertionError(path)


@pytest.mark.parametrize(
    ("origin", "requirement"),
    [
        (None, "'inagg[switch]==9.8.7'"),
        (
            {"url": "file:///opt/inagg-9.8.7-cp311.whl", "archive_info": {}},
            "'/opt/inagg-9.8.7-cp311.whl[switch]'",
        ),
        ({"url": "file:///my%20clone", "dir_info": {}}, "'/my clone[switch]'"),
        ({"url": "file:///clone", "dir_info": {"editable": True}}, "--editable '/clone[switch]'"),
        (
            {"url": "https://example.org/inagg.git", "vcs_info": {"vcs": "git", "commit_id": "12ab"}},
            "'inagg[switch] @ git+https://example.org/inagg.git@12ab'",
        ),
        (
            {"url": "https://example.org/inagg-9.8.7.whl", "archive_info": {}},
            "'inagg[switch] @ https://example.org/inagg-9.8.7.whl'",
        ),
    ],
)
def test_an_extra_comes_from_where_the_distribution_came_from(
    monkeypatch: pytest.MonkeyPatch, origin: object, requirement: str
) -> None:
    monkeypatch.setattr(installation, "distribution", lambda name: {"inagg": _Installed(origin)}[name])
    assert installation.pip_install("switch") == f"pip install {requirement}"
