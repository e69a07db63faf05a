# SPDX-License-Identifier: Apache-2.0
"""Ranges in traces of torch.profiler."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch.autograd import profiler


def profile_range(name: str) -> AbstractContextManager[Any]:
    """Record the block as a range ``inagg::NAME`` if a profiler runs.

    The range ends on the thread where it began. A range that a future ends, as gloo's do, would end on one of our
    threads; with such ranges, traced sums sometimes hung.
    """
    return profiler.record_function(f"inagg::{name}") if profiler._is_profiler_enabled else nullcontext()
