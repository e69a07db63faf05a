# SPDX-License-Identifier: Apache-2.0
"""What each step of a training loop spent on its sums, as numbers for TensorBoard or any other logger."""

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from inagg.counters import REDUCTIONS, difference
from inagg.explanation import explain_figures
from inagg.groups import inagg_group


class StepFigures:
    """Gives the figures of one step after the other.

        figures = inagg.StepFigures()
        for step, batch in enumerate(batches):
            train(batch)
            for name, value in figures.step().items():
                writer.add_scalar(f"inagg/{name}", value, step)

    docs/performance.md has the figures, and callbacks for Lightning and Hugging Face's Trainer.

    Args:
        group: an inagg group; by default the world.

    Raises:
        ConfigurationError: the group is not an inagg group.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = inagg_group(group)
        self._before: Mapping[str, Any] = self._group.stats()

    def step(self) -> dict[str, float]:
        """The figures since the last call, at first since this object was made. It waits for nothing: sums that are
        still under way count in later steps."""
        now = self._group.stats()
        figures = difference(self._before, now)
        self._before = now
        sums = [call for kind, call in figures["calls"].items() if kind in REDUCTIONS]
        found = {
            "step_s": figures["elapsed_s"],
            "sums": sum(call["ended"] for call in sums),
            "sums_MB": sum(call["ended_bytes"] for call in sums) / 1e6,
            "sums_s": sum(call["seconds"] for call in sums),
            "on_switch": figures["path"] == "switch",
        }
        if parts := explain_figures(figures).shares:
            found |= {f"share/{cause}": share for cause, share in parts.items()}
            found |= {name: figures[name] for name in ("waited_s", "retransmits", "window", "srtt_s")}
            found["changes"] = len(figures["changes"])
        return {name: float(value) for name, value in found.items()}
