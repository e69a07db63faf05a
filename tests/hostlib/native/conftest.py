# SPDX-License-Identifier: Apache-2.0
"""The builds of the core's inner loops."""

from collections.abc import Iterator

import pytest

from inagg import _core


@pytest.fixture(params=_core.available_kernels(), scope="module")
def kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every build of the inner loops passes every test."""
    _core.use_kernels(request.param)
    yield
    _core.use_kernels(_core.available_kernels()[0])
