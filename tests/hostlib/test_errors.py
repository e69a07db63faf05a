# SPDX-License-Identifier: Apache-2.0
"""Errors: their messages, and that they cross process boundaries."""

import pickle
from collections.abc import Callable
from functools import partial

import pytest
import torch.distributed as dist

from inagg.errors import (
    CollectiveError,
    CollectiveTimeoutError,
    ConfigurationError,
    ControllerError,
    ControllerRefusedError,
    ControllerUnreachableError,
    DeliveryError,
    InaggError,
    IntegrityError,
    JobError,
    JobRank,
    MismatchError,
    NetworkTimeoutError,
    PeerLostError,
    WaitTimeoutError,
)

URL = "http://10.0.0.254:9560"
ERRORS = [
    ConfigurationError("lane_bits is 7; it must be 16 or 32"),
    ControllerUnreachableError(url=URL, request="GET /health", cause="refused"),
    ControllerRefusedError(url=URL, request="POST /jobs", status=503, title="Unavailable", detail="full"),
    JobError("ended on request", job=1, job_name="train.py", rank=0),
    PeerLostError([2, 3], reason="no heartbeat for 3 s", job=1, rank=0, chunk=77),
    NetworkTimeoutError(77, waited_s=120.0, packet_bytes=1072, job=1, rank=0),
    CollectiveTimeoutError(1000, timeout_s=3.0, job=1, rank=0, chunk=77),
    DeliveryError(MemoryError("no room")),
    WaitTimeoutError(3.0),
    IntegrityError(77, job=1, rank=0),
    IntegrityError(77, job=1, rank=0, call="number 3, barrier()"),
    MismatchError(77, job=1, rank=0, detail="they do", collective=3, calls={0: "barrier()", 1: "gather()"}),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_cross_a_process_boundary_whole(error: InaggError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (str(copy), repr(copy.__dict__)) == (str(error), repr(error.__dict__))
    assert isinstance(copy, InaggError)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_programs_for_gloo_and_nccl_catch_what_breaks_a_job_and_nothing_else(error: InaggError) -> None:
    of_settings = isinstance(error, ConfigurationError | ControllerError)
    for kind in (CollectiveError, RuntimeError, dist.DistError, dist.DistBackendError):
        assert isinstance(error, kind) is not of_settings
    timeouts = (NetworkTimeoutError, CollectiveTimeoutError, WaitTimeoutError)
    assert isinstance(error, TimeoutError) is isinstance(error, timeouts)


def test_a_result_that_stays_wrong_is_told_with_what_was_tried_and_what_to_do() -> None:
    text = str(IntegrityError(77, job=1, rank=0))
    assert "chunk 77" in text
    assert "the result failed its checks, and again when it was sent twice more" in text
    assert "Restart the job from its last checkpoint." in text
    assert "every rank uses the same lane width" in text
    assert "ip -s link" in text


@pytest.mark.parametrize(
    "kind",
    [
        partial(JobError, "ended"),
        partial(PeerLostError, [2], reason="it left"),
        partial(CollectiveTimeoutError, 1000, timeout_s=3.0),
        partial(NetworkTimeoutError, 77, waited_s=3.0, packet_bytes=1072),
        partial(IntegrityError, 77),
        partial(MismatchError, 77),
    ],
    ids=lambda kind: kind.func.__name__,
)
def test_the_errors_of_a_job_name_the_job(kind: Callable[..., InaggError]) -> None:
    error = kind(job=3, job_name="train.py", rank=1)
    assert str(error).startswith("job 3 (train.py), rank 1")
    assert pickle.loads(pickle.dumps(error)).job_name == "train.py"
    assert str(kind(job=3, rank=1)).startswith("job 3, rank 1")


def test_a_lost_peer_is_told_with_ranks_chunk_and_what_to_do() -> None:
    places = {1: "h2, 10.0.0.2", 2: "h3, 10.0.0.3"}
    member = JobRank(1, "train.py", 0)
    lost = PeerLostError([2, 3], reason="no heartbeat for 3 s", places=places, **member._asdict(), chunk=77)
    assert str(lost) == (
        "job 1 (train.py), rank 0: lost ranks 2 (h3, 10.0.0.3), 3: no heartbeat for 3 s; the oldest chunk without a "
        "result is 77. Restart the job from its last checkpoint."
    )
