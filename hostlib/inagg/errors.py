# SPDX-License-Identifier: Apache-2.0
"""The exceptions of inagg, one class for each party at fault.

    InaggError
    ├── ConfigurationError        the caller's settings or arguments (also a ValueError)
    ├── ControllerError           the controller
    │   ├── ControllerUnreachableError    does not answer (also a ConnectionError)
    │   └── ControllerRefusedError        answered with an error status
    │       └── ControllerForbiddenError      ... because of a secret or an address (also a PermissionError)
    └── CollectiveError           a collective has failed (also torch's DistBackendError, which is a RuntimeError)
        ├── JobError                  the job has failed or ended
        │   ├── PeerLostError             ... because of another rank
        │   └── CollectiveTimeoutError    ... because of a collective that took too long (also a TimeoutError)
        ├── NetworkTimeoutError       the network or the switch does not answer (also a TimeoutError)
        ├── IntegrityError            a link, the switch or a rank: a result does not fit its checksum
        ├── MismatchError             the ranks: they disagree about a collective
        ├── DeliveryError             this process: it could not bring the result to the program's tensor
        └── WaitTimeoutError          nobody: a wait is over, and the sum continues (also a TimeoutError)

Programs that handle the errors of gloo catch RuntimeError, those of NCCL DistBackendError or DistError. Both also catch
each CollectiveError, and neither catches an error in the program's settings.

The constructors compose the messages: what happened, to what (job with its name, rank, chunk), what to do. The facts
are attributes too; None means unknown. Every error keeps its attributes when it is pickled.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch.distributed import DistBackendError

from inagg.base_errors import (
    ConfigurationError,
    ControllerError,
    ControllerForbiddenError,
    ControllerRefusedError,
    ControllerUnreachableError,
    InaggError,
)
from inagg_contract.ranks import name_job, name_ranks


class JobRank(NamedTuple):
    """A rank of a job, in errors and in the log."""

    job: int
    job_name: str
    rank: int

    def __str__(self) -> str:
        return f"{name_job(self.job, self.job_name)}, rank {self.rank}"


def _subject(job: int | None, job_name: str, rank: int | None, chunk: int | None) -> str:
    """ "job 3 (train.py), rank 1, chunk 77: ", without the unknown ones."""
    known = [] if job is None else [name_job(job, job_name)]
    known += [f"{name} {value}" for name, value in (("rank", rank), ("chunk", chunk)) if value is not None]
    return f"{', '.join(known)}: " if known else ""


def describe_loss(ranks: Sequence[int], reason: str, places: Mapping[int, str] | None = None) -> str:
    """ "lost rank 1 (h2, 10.0.0.2): it left"."""
    return f"lost {name_ranks(ranks, places)}: {reason}"


class CollectiveError(InaggError, DistBackendError):
    """A collective has failed."""


class JobError(CollectiveError):
    """The job has failed or ended, so none of its collectives can complete."""

    def __init__(
        self,
        reason: str,
        *,
        job: int | None = None,
        job_name: str = "",
        rank: int | None = None,
        chunk: int | None = None,
    ) -> None:
        super().__init__(f"{_subject(job, job_name, rank, chunk)}{reason}")
        self.reason = reason
        self.job = job
        self.job_name = job_name
        self.rank = rank
        self.chunk = chunk


class PeerLostError(JobError):
    """Other ranks are gone, so the job's sums cannot complete.

    lost_ranks: the ranks that are gone. places: rank -> its host and address, of those that are known.
    chunk: this rank's oldest chunk without a result, None if nothing was outstanding.
    """

    def __init__(
        self,
        lost_ranks: Sequence[int],
        *,
        reason: str,
        places: Mapping[int, str] | None = None,
        job: int | None = None,
        job_name: str = "",
        rank: int | None = None,
        chunk: int | None = None,
    ) -> None:
        pending = "nothing was outstanding"
        if chunk is not None:
            pending = f"the oldest chunk without a result is {chunk}"
        super().__init__(
            f"{describe_loss(lost_ranks, reason, places)}; {pending}. Restart the job from its last checkpoint.",
            job=job,
            job_name=job_name,
            rank=rank,
        )
        self.reason = reason
        self.lost_ranks = tuple(lost_ranks)
        self.places = {rank: where for rank, where in (places or {}).items() if rank in lost_ranks}
        self.chunk = chunk


class CollectiveTimeoutError(JobError, TimeoutError):
    """A collective did not complete within the group's timeout, so this rank has ended the job.

    elements: number of elements of the tensor. timeout_s: the timeout, in seconds.
    """

    def __init__(
        self,
        elements: int,
        *,
        timeout_s: float,
        job: int | None = None,
        job_name: str = "",
        rank: int | None = None,
        chunk: int | None = None,
    ) -> None:
        super().__init__(
            f"timeout: {elements} elements were not summed within the group's {timeout_s:g} s. Check that every rank "
            "has called this collective and is still training, or pass a longer timeout to init_process_group.",
            job=job,
            job_name=job_name,
            rank=rank,
            chunk=chunk,
        )
        self.elements = elements
        self.timeout_s = timeout_s


class NetworkTimeoutError(CollectiveError, TimeoutError):
    """The switch has not answered: for the give-up time, or while the job was joined.

    chunk: the oldest chunk without a result. waited_s: in seconds. packet_bytes: the job's largest IP packet.
    passed_bytes: the largest IP packet that was answered, if it is smaller; None: unknown. narrow: the ranks whose path
    to or from the switch loses larger packets, given with their hosts and addresses; None: unknown. aggregator: what
    has not answered.
    """

    def __init__(
        self,
        chunk: int,
        *,
        waited_s: float,
        packet_bytes: int,
        passed_bytes: int | None = None,
        narrow: Mapping[int, str] | None = None,
        aggregator: str = "the switch",
        job: int | None = None,
        job_name: str = "",
        rank: int | None = None,
    ) -> None:
        whose = "any rank" if narrow is None else name_ranks([*narrow], narrow)
        small_mtu = (
            f"an interface or a switch port on the path of {whose} has an MTU below {packet_bytes} bytes; see "
            "`ip link` on the hosts and the switch, and the switch's log."
        )
        super().__init__(
            _subject(job, job_name, rank, chunk)
            + (
                f"no packet from {aggregator} for {waited_s:g} s. Check the links, firewalls, {aggregator}, and "
                f"whether every rank is still training. If only small packets pass, {small_mtu}"
                if passed_bytes is None
                else f"no answer to an IP packet of {packet_bytes} bytes for {waited_s:g} s, while packets of "
                f"{passed_bytes} bytes pass between all ranks and {aggregator}: {small_mtu}"
            )
        )
        self.chunk = chunk
        self.waited_s = waited_s
        self.packet_bytes = packet_bytes
        self.passed_bytes = passed_bytes
        self.narrow = narrow if narrow is None else tuple(narrow)
        self.job = job
        self.job_name = job_name
        self.rank = rank


class IntegrityError(CollectiveError):
    """A chunk's result failed its checks three times, such as the linear checksum of its lanes. No sum is returned.

    A lane overflowed, a contribution was added twice or not at all, or packets were damaged or forged in transit
    (docs/protocol.md, sections 4 and 6). call: this rank's last, if the results do not fit it; "": they fit.
    """

    def __init__(
        self,
        chunk: int,
        *,
        job: int | None = None,
        job_name: str = "",
        rank: int | None = None,
        call: str = "",
    ) -> None:
        what = "the result failed its checks, and again when it was sent twice more"
        if call:
            what = (
                f"results that came three times are of another collective than this rank's ({call}), and the "
                "controller, which compares the calls of all ranks, has found no difference"
            )
        super().__init__(
            f"{_subject(job, job_name, rank, chunk)}{what}, so the sum was discarded. Restart the job from its last "
            "checkpoint. If it happens again, check that every rank uses the same lane width; if they do, a link or "
            "the switch damages packets, or a host forges them: look for errors in `ip -s link` and `ethtool -S` of "
            "the hosts and the switch."
        )
        self.chunk = chunk
        self.job = job
        self.job_name = job_name
        self.rank = rank
        self.call = call


class MismatchError(CollectiveError):
    """The ranks disagree about a collective.

    chunk: the chunk whose result showed it; None if a heartbeat did. collective: the number, within its group, of the
    collective in which ranks differ; None: unknown. calls: rank -> its call; empty: unknown. detail: a description.
    """

    def __init__(
        self,
        chunk: int | None = None,
        *,
        job: int | None = None,
        job_name: str = "",
        rank: int | None = None,
        detail: str = "",
        collective: int | None = None,
        calls: Mapping[int, str] | None = None,
    ) -> None:
        super().__init__(
            _subject(job, job_name, rank, chunk)
            + f"{detail or 'the ranks disagree about this collective'}. Every rank must "
            "call the same collectives of a group, in the same order, on tensors of the same size and type, with the "
            "same options."
        )
        self.chunk = chunk
        self.job = job
        self.job_name = job_name
        self.rank = rank
        self.detail = detail
        self.collective = collective
        self.calls = dict(calls or {})


class DeliveryError(CollectiveError):
    """A sum is done, and this process could not bring it to the program's tensor, for example for lack of memory.

    The other ranks have the result, and the job goes on. cause: what was raised.
    """

    def __init__(self, cause: Exception) -> None:
        super().__init__(
            f"the sum is done, and its result cannot be delivered: {type(cause).__name__}: {cause}"
        )
        self.cause = cause


class WaitTimeoutError(CollectiveError, TimeoutError):
    """A wait with a timeout is over. The collective continues. timeout_s: in seconds."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"not done after {timeout_s:g} s; it goes on")
        self.timeout_s = timeout_s


__all__ = [
    "CollectiveError",
    "CollectiveTimeoutError",
    "ConfigurationError",
    "ControllerError",
    "ControllerForbiddenError",
    "ControllerRefusedError",
    "ControllerUnreachableError",
    "DeliveryError",
    "InaggError",
    "IntegrityError",
    "JobError",
    "MismatchError",
    "NetworkTimeoutError",
    "PeerLostError",
    "WaitTimeoutError",
]
