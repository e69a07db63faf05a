# SPDX-License-Identifier: Apache-2.0
"""How long this process's program has waited for torch's data loaders. torch has no hook for it."""

import functools
import threading
import time
from typing import Any

from torch.utils.data.dataloader import _BaseDataLoaderIter

from inagg import spans

_lock = threading.Lock()  # guards what follows
_seconds = 0.0
_watched = False


def watch_loaders() -> None:
    """Measure from now on. Calling it again changes nothing."""
    global _watched
    with _lock:
        if _watched:
            return
        _watched = True
    next_batch = _BaseDataLoaderIter.__next__

    @functools.wraps(next_batch)
    def timed(self: Any) -> Any:
        global _seconds
        since = time.monotonic()
        try:
            return next_batch(self)
        finally:
            now = time.monotonic()
            with _lock:
                _seconds += now - since
            if (recorder := spans.recorder()) is not None:
                recorder.loaded(since, now)

    _BaseDataLoaderIter.__next__ = timed  # type: ignore[method-assign]


def loading_s() -> float:
    """Seconds since `watch_loaders`, over all loaders and threads."""
    return _seconds
