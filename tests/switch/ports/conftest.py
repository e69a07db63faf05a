# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the ports' tests: a hub instead of a P4 program."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.switch.ports.hub import Hub, MakeHub, compile_hub


@pytest.fixture(scope="session")
def hub_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_hub(tmp_path_factory.mktemp("hub"))


@pytest.fixture
def hub_program(hub_library: Path) -> Iterator[MakeHub]:
    """Makes a hub between the given ports."""
    made: list[Hub] = []

    def make(ports: list[int]) -> Hub:
        made.append(Hub(hub_library, ports))
        return made[-1]

    yield make
    for program in made:
        program.close()
