# SPDX-License-Identifier: Apache-2.0
"""Rows as `inagg bench allreduce` measures them."""

from typing import Any


def row(backend: str, lane_bits: int | None, p50: float, **changes: Any) -> dict[str, Any]:
    figures = {
        "workers": 4,
        "elements": 1000,
        "loss": 0.0,
        "link": "100mbit",
        "topology": "star",
        "time_ms": {"p50": p50, "min": p50 - 1},
        "times_ms": [p50 - 1, p50, p50 + 2],
        "ratio_to_gloo": 40.0 / p50,
        "busbw_MBps": 100.0,
        "line_rate_fraction": 0.9,
        "link_bytes": 4_240_000.0,
        "theory_bytes": 4_000_000.0,
        "theory": "S",
        "steps": 1,
        "in_switch": 1.0,
        "cpu_s_per_GB": 2.0,
        "retransmits": 0,
        "packets_per_message": None,
        "max_abs_error": 0.0,
        "bound": 1.0,
        "checked": True,
    }
    return {"backend": backend, "lane_bits": lane_bits, **figures, **changes}


ROWS = [row("gloo", None, 40.0, link_bytes=6_000_000.0), row("inagg", 16, 10.0)]
