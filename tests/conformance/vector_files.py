# SPDX-License-Identifier: Apache-2.0
"""The vectors in vectors/, and what the P4 program needs for them."""

import json
from pathlib import Path
from typing import Any

import pytest

from inagg_simulator import p4_switch

VECTORS = Path(__file__).with_name("vectors")
RECEIVERS = pytest.mark.parametrize("multicast", [False, True], ids=["to each worker", "to the group"])


def load(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((VECTORS / name).read_text())
    return document


def switches_above(vectors: dict[str, Any]) -> tuple[p4_switch.Above, ...]:
    return tuple(
        p4_switch.Above(p4_switch.switch_station(number), 100 + number, rank)
        for number, rank in enumerate(vectors.get("above", ()))
    )
