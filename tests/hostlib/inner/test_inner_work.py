# SPDX-License-Identifier: Apache-2.0
"""The error of a failed work is what its wait raises, in every release of torch."""

from datetime import timedelta

import pytest
from torch.distributed.distributed_c10d import Work

from inagg.counters import Tally
from inagg.errors import JobError
from inagg.inner.work import InnerWork

LOST = JobError("rank 1 has ended", rank=0)


class Failed(Work):
    """A work of gloo that has ended with an error. Its exception() is that of torch up to 2.12."""

    def __init__(self, error: str) -> None:
        super().__init__()
        self._error = error

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return False

    def exception(self) -> BaseException:
        raise TypeError("Unregistered type : std::__exception_ptr::exception_ptr")

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        raise RuntimeError(self._error)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("invalid root rank: 7", "invalid root rank: 7"),
        ("[gloo/transport/tcp/pair.cc:547] Connection closed by peer", "rank 1 has ended"),
    ],
)
def test_it_is_gloos_own_or_what_broke_the_group(error: str, expected: str) -> None:
    work = InnerWork(Failed(error), lambda: LOST, Tally().begin("broadcast(float32)", 12))
    assert expected in str(work.exception())
    with pytest.raises((RuntimeError, JobError), match=expected):
        work.wait()
