# SPDX-License-Identifier: Apache-2.0
"""Ranges in traces of torch.profiler."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch.autograd import profiler


def profile_range(name: str) -> AbstractContextManager[Any]:
    """What is done in the block is a range ``inagg::NAME`` of a trace, if one is being made.

    It ends on the thread where it began. Ranges that a future ends, as gloo's do, would be ended by a thread of ours:
    with them, sums that were traced hung now and then.
    """
    return profiler.record_function(f"inagg::{name}") if profiler._is_profiler_enabled else nullcontext()
