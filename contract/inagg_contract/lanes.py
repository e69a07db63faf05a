# SPDX-License-Identifier: Apache-2.0
"""The widths of lanes, in bits (docs/protocol.md, 3.1). Needs only the standard library."""

from typing import Literal, get_args

LaneWidth = Literal[8, 16, 32]
LANE_WIDTHS: tuple[LaneWidth, ...] = get_args(LaneWidth)
