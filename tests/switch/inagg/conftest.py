# SPDX-License-Identifier: Apache-2.0
"""inagg.p4 on switches of one and of several threads, which run the packets of a test in turn."""

from collections.abc import Iterator

import pytest

from inagg_switch import Switch
from tests import INAGG_P4


@pytest.fixture(params=[1, 2, 4], ids=lambda n: f"{n}threads")
def fresh(request: pytest.FixtureRequest) -> Iterator[Switch]:
    """A switch without entries."""
    with Switch.from_p4(INAGG_P4, seed=1, threads=request.param) as made:
        yield made


@pytest.fixture
def program(fresh: Switch) -> Switch:
    """The switch of a test. Modules whose tests need entries have a fixture of this name."""
    return fresh
