# SPDX-License-Identifier: Apache-2.0
"""What is exchanged of a model, and what is not."""

from pathlib import Path

import pytest

from tests.baselines.ranks import run


@pytest.mark.parametrize("name", ["server:ssp=0", "gossip:random", "local:1"])
def test_frozen_parameters_and_buffers_stay_local(name: str, tmp_path: Path) -> None:
    """Each of two ranks adds its number to all that it has."""
    first, second = run("attach_normalisation", 2, tmp_path, architecture=name)
    assert first == {"weight": [1.5], "bias": [0.0], "running_mean": [0.0], "running_var": [1.0]}
    assert second == {"weight": [1.5], "bias": [1.0], "running_mean": [1.0], "running_var": [1.0]}
