# SPDX-License-Identifier: Apache-2.0
"""What this process does when: spans of its program and of its collectives, for the last steps of a training.

Nothing is recorded before `start`. Then the ends of collectives (`inagg.counters`), waits (`inagg.sums.work`,
`inagg.inner.work`) and data loaders (`inagg.loading`) are recorded here, and `watch_training` adds what torch does:

| kind | from | to |
|---|---|---|
| forward | the end of the step, backward pass or data loader before | the begin of `backward` |
| backward | the begin of `backward` | the last gradient is computed |
| wait | the program begins to wait for a collective | the wait ends, or the last collective does |
| optimizer | the begin of an optimizer's `step` | its end |
| data loading | the program asks a data loader for a batch | it has the batch |
| exchange, evaluation | of `inagg compare` | |
| all_reduce, broadcast, ... | the collective's call | its end is noticed |

A pass within a pass, and the step of an optimizer within an optimizer's, are parts of the outer one.

A span is a tuple and costs about a microsecond. Steps older than the last `MOST_STEPS` are forgotten.
"""

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

VARIABLE = "INAGG_TRACE"  # a folder; `inagg.tracing` starts the recorder, and writes the steps there
MOST_STEPS = 16
_MOST_SPANS, _MOST_TAILS = 4096, 1024  # of a step
_WARM_UP = 2  # steps

FORWARD, BACKWARD, WAIT, OPTIMIZER, LOADING = "forward", "backward", "wait", "optimizer", "data loading"
EXCHANGE, EVALUATION = "exchange", "evaluation"
# Kinds that are no collectives: what the program's own thread does.
OF_PROGRAM = (FORWARD, BACKWARD, WAIT, OPTIMIZER, LOADING, EXCHANGE, EVALUATION)


class Span(NamedTuple):
    """Something that lasts, in seconds of `time.monotonic`. size: bytes of a collective, else 0."""

    kind: str
    begin_s: float
    end_s: float
    size: int = 0

    @property
    def is_collective(self) -> bool:
        return self.kind not in OF_PROGRAM


class Step(NamedTuple):
    """A step: from the end of the one before to its own. number: from 0. The spans ended in it, in that order."""

    number: int
    begin_s: float
    end_s: float
    spans: list[Span]


def common_steps(ranks: Iterable[Mapping[int, Step]]) -> list[int]:
    """The numbers of the steps that all ranks have, ascending. The first two are left out if there are others: torch
    allocates, and DDP chooses its buckets.

    ranks: of each the steps by number.
    """
    common = sorted(set.intersection(*map(set, ranks)))
    return [number for number in common if number >= _WARM_UP] or common


class Recorder:
    """The spans of the last steps. The thread that makes it is the program's. Thread-safe."""

    def __init__(self, now_s: float) -> None:
        self._thread = threading.get_ident()
        self._lock = threading.Lock()  # guards what follows
        self._steps: deque[Step] = deque(maxlen=MOST_STEPS)
        self._spans: list[Span] = []
        self._number = 0
        self._begin_s = now_s
        self._since_s = now_s  # of the program's thread, as the next
        self._tails: list[tuple[float, float]] = []  # of backward passes: the gradients are computed, the end

    def add(self, span: Span) -> None:
        """Something has ended."""
        with self._lock:
            self._add(span)

    def _add(self, *spans: Span) -> None:
        self._spans.extend(spans[: _MOST_SPANS - len(self._spans)])

    def collective(self, kind: str, size: int, begin_s: float, end_s: float) -> None:
        """A collective on `size` bytes has ended."""
        self.add(Span(kind, begin_s, end_s, size))

    def loaded(self, begin_s: float, end_s: float) -> None:
        """A data loader has given a batch."""
        if self.is_programs():
            with self._lock:
                self._add(Span(LOADING, begin_s, end_s))
                self._since_s = end_s

    @contextmanager
    def during(self, kind: str) -> Iterator[None]:
        """The program does this in the block. Other threads are not recorded."""
        begin_s = time.monotonic()
        try:
            yield
        finally:
            if self.is_programs():
                self.add(Span(kind, begin_s, time.monotonic()))

    def backward(self, begin_s: float, computed_s: float, end_s: float) -> None:
        """A backward pass has ended. computed_s: the last gradient was computed, and waiting for sums began."""
        with self._lock:
            self._add(Span(FORWARD, self._since_s, begin_s), Span(BACKWARD, begin_s, computed_s))
            if len(self._tails) < _MOST_TAILS:
                self._tails.append((computed_s, end_s))
            self._since_s = end_s

    def go_on(self, now_s: float) -> None:
        """What the program does from now on belongs to the next forward pass."""
        with self._lock:
            self._since_s = now_s

    def end_step(self, now_s: float) -> None:
        """An optimizer's step has ended, and with it a step of the training."""
        with self._lock:
            self._spans.extend(self._waits())
            self._steps.append(Step(self._number, self._begin_s, now_s, self._spans))
            self._number, self._begin_s, self._spans = self._number + 1, now_s, []
            self._tails, self._since_s = [], now_s

    def _waits(self) -> Iterator[Span]:
        """The ends of the backward passes, as long as collectives were under way: DDP's reducer waits there, and copies
        the results."""
        for computed_s, end_s in self._tails:
            ends = [span.end_s for span in self._spans if span.is_collective and span.begin_s < end_s]
            until_s = min(end_s, max(ends, default=computed_s))
            if until_s > computed_s:
                yield Span(WAIT, computed_s, until_s)

    def steps(self) -> list[Step]:
        """The last steps, the oldest first."""
        with self._lock:
            return list(self._steps)

    def is_programs(self) -> bool:
        """Whether the calling thread is the program's."""
        return threading.get_ident() == self._thread


_recorder: Recorder | None = None


def start() -> Recorder:
    """Record from now on, in the calling thread's program. Calling it again changes nothing."""
    global _recorder
    if _recorder is None:
        _recorder = Recorder(time.monotonic())
    return _recorder


def recorder() -> Recorder | None:
    """What records; None before `start`."""
    return _recorder


def waiting() -> AbstractContextManager[Any]:
    """Record the block as a wait of the program."""
    return nullcontext() if _recorder is None else _recorder.during(WAIT)
