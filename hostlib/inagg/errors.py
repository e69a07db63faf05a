# SPDX-License-Identifier: Apache-2.0
"""What can go wrong, one class for each party at fault.

    InaggError
    ├── ConfigurationError        the caller's settings or arguments (also a ValueError)
    ├── ControllerError           the controller
    │   ├── ControllerUnreachableError    no answer from it (also a ConnectionError)
    │   └── ControllerRefusedError        it answered, with an error status
    │       └── ControllerForbiddenError      ... because a secret is missing or wrong (also a PermissionError)
    ├── JobError                  the job has ended or failed as a whole
    │   ├── PeerLostError         ... because of another rank
    │   └── CollectiveTimeoutError    ... because of a collective that took too long (also a TimeoutError)
    ├── NetworkTimeoutError       the network or the switch: no answer, or none to large packets (also a TimeoutError)
    ├── IntegrityError            a result whose checksum does not fit its lanes
    └── MismatchError             ranks that disagree about a collective

Messages are composed here, from the facts: what happened, to what (job, rank, chunk), what to do. The facts
stay readable as attributes; None means that the raiser did not know. Every error survives pickling with its
attributes, so it can cross a process boundary.
"""

from collections.abc import Mapping, Sequence
from typing import Any


def _rebuild(kind: "type[InaggError]", message: str, facts: dict[str, Any]) -> "InaggError":
    error = kind.__new__(kind, message)
    Exception.__init__(error, message)
    error.__dict__.update(facts)
    return error


def _subject(job: int | None, rank: int | None, chunk: int | None) -> str:
    """ "job 3, rank 1, chunk 77: ", of what is known."""
    facts = [("job", job), ("rank", rank), ("chunk", chunk)]
    known = ", ".join(f"{name} {value}" for name, value in facts if value is not None)
    return f"{known}: " if known else ""


def name_ranks(ranks: Sequence[int]) -> str:
    """As messages have them: rank 1, or ranks 1, 2."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


class InaggError(Exception):
    """Base of every error that inagg raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), str(self), self.__dict__)


class ConfigurationError(InaggError, ValueError):
    """A setting or an argument that cannot work. Nothing has been changed or sent."""


class ControllerError(InaggError):
    """The controller could not do, or would not do, what was asked.

    url: the controller's base URL.
    """

    def __init__(self, message: str, *, url: str | None = None) -> None:
        super().__init__(message)
        self.url = url


class ControllerUnreachableError(ControllerError, ConnectionError):
    """No answer from the controller within the time allowed."""

    def __init__(self, *, url: str, request: str, cause: str) -> None:
        super().__init__(
            f"no answer from the controller at {url} to {request}: {cause}. Is inagg-controller running "
            "there, and can this host reach it?",
            url=url,
        )
        self.request = request


class ControllerRefusedError(ControllerError):
    """The controller answered with an error.

    status: the HTTP status; 401 and 403 secret, 404 unknown job, 409 conflict, 422 bad input, 503 switch away or pool
    full.
    title, detail: from its problem document (RFC 9457).
    """

    def __init__(self, *, url: str, request: str, status: int, title: str, detail: str) -> None:
        super().__init__(f"the controller at {url} refused {request}: {title} ({status}): {detail}", url=url)
        self.request = request
        self.status = status
        self.title = title
        self.detail = detail


class ControllerForbiddenError(ControllerRefusedError, PermissionError):
    """The controller takes such a request only with a secret, and it was missing or wrong: a job's own, which its ranks
    pass to one another, or the operator's token.
    """


class JobError(InaggError):
    """The job has failed or ended; no collective of it can complete any more."""

    def __init__(
        self, reason: str, *, job: int | None = None, rank: int | None = None, chunk: int | None = None
    ) -> None:
        super().__init__(f"{_subject(job, rank, chunk)}{reason}")
        self.reason = reason
        self.job = job
        self.rank = rank
        self.chunk = chunk


class PeerLostError(JobError):
    """Other ranks are gone, so sums can no longer be completed.

    lost_ranks: the ranks that are gone.
    chunk: this rank's oldest chunk without a result, None when nothing was outstanding.
    """

    def __init__(
        self,
        lost_ranks: Sequence[int],
        *,
        reason: str,
        job: int | None = None,
        rank: int | None = None,
        chunk: int | None = None,
    ) -> None:
        pending = "nothing was outstanding"
        if chunk is not None:
            pending = f"the oldest chunk without a result is {chunk}"
        super().__init__(
            f"lost {name_ranks(lost_ranks)} ({reason}); {pending}. Restart the job, from its last checkpoint.",
            job=job,
            rank=rank,
        )
        self.reason = reason
        self.lost_ranks = tuple(lost_ranks)
        self.chunk = chunk


class CollectiveTimeoutError(JobError, TimeoutError):
    """A collective was not done within the group's timeout, so this rank has ended the job.

    elements: of the tensor that was being summed. timeout_s: the timeout, in seconds.
    """

    def __init__(
        self,
        elements: int,
        *,
        timeout_s: float,
        job: int | None = None,
        rank: int | None = None,
        chunk: int | None = None,
    ) -> None:
        super().__init__(
            f"timeout: {elements} elements were not summed within the group's {timeout_s:g} s. Has every rank "
            "called this collective, and is it still training? A longer timeout is init_process_group's to give.",
            job=job,
            rank=rank,
            chunk=chunk,
        )
        self.elements = elements
        self.timeout_s = timeout_s


class NetworkTimeoutError(InaggError, TimeoutError):
    """What was sent has not been answered: for the give-up time, or when the job was joined.

    chunk: the oldest chunk without a result. waited_s: in seconds. packet_bytes: the largest IP packet of the job.
    passed_bytes: the largest one that has been answered, if that is less; None: not known. narrow: the ranks whose way
    to or from the switch loses larger ones, where that is known.
    """

    def __init__(
        self,
        chunk: int,
        *,
        waited_s: float,
        packet_bytes: int,
        passed_bytes: int | None = None,
        narrow: Sequence[int] | None = None,
        job: int | None = None,
        rank: int | None = None,
    ) -> None:
        whose = "any rank" if narrow is None else name_ranks(narrow)
        told = (
            f"an interface or a port of the switch, of {whose}, has an MTU below {packet_bytes} bytes: `ip link` on "
            "the hosts and the switch tells, and so does the switch's log."
        )
        super().__init__(
            _subject(job, rank, chunk)
            + (
                f"no packet from the switch for {waited_s:g} s. Check the links, firewalls, the switch, and whether "
                f"every rank is still training. Where small packets pass and sums do not, {told}"
                if passed_bytes is None
                else f"no answer to an IP packet of {packet_bytes} bytes for {waited_s:g} s, while those of "
                f"{passed_bytes} bytes pass between all ranks and the switch: {told}"
            )
        )
        self.chunk = chunk
        self.waited_s = waited_s
        self.packet_bytes = packet_bytes
        self.passed_bytes = passed_bytes
        self.narrow = narrow if narrow is None else tuple(narrow)
        self.job = job
        self.rank = rank


class IntegrityError(InaggError):
    """A chunk's result failed its checks, the linear checksum of its lanes among them, three times. The sum was not
    returned.

    See docs/protocol.md, sections 4 and 6: a lane overflowed, a contribution was added twice or not at all, or the
    payload was damaged on the way.
    """

    def __init__(self, chunk: int, *, job: int | None = None, rank: int | None = None) -> None:
        super().__init__(
            f"{_subject(job, rank, chunk)}the result failed its checks three times, though it was asked for again "
            "after each of the first two, so the sum was discarded. Restart the job, from its last checkpoint. If it "
            "happens again, see that every rank uses the same lane width; if they do, a link or the switch damages "
            "packets: look for errors in `ip -s link` and `ethtool -S` of the hosts and the switch."
        )
        self.chunk = chunk
        self.job = job
        self.rank = rank


class MismatchError(InaggError):
    """The ranks disagree about what they do.

    chunk: where this was noticed, None where not in a sum. collective: the number, within its group, of the collective
    in which ranks differ, and calls: rank -> what it is there; None and empty if nobody knows. detail: what is known.
    """

    def __init__(
        self,
        chunk: int | None = None,
        *,
        job: int | None = None,
        rank: int | None = None,
        detail: str = "",
        collective: int | None = None,
        calls: Mapping[int, str] | None = None,
    ) -> None:
        super().__init__(
            f"{_subject(job, rank, chunk)}{detail or 'the ranks disagree about this collective'}. Every rank must "
            "call the same collectives of a group, in the same order, on tensors of the same size and type, with the "
            "same options."
        )
        self.chunk = chunk
        self.job = job
        self.rank = rank
        self.detail = detail
        self.collective = collective
        self.calls = dict(calls or {})


__all__ = [
    "CollectiveTimeoutError",
    "ConfigurationError",
    "ControllerError",
    "ControllerForbiddenError",
    "ControllerRefusedError",
    "ControllerUnreachableError",
    "InaggError",
    "IntegrityError",
    "JobError",
    "MismatchError",
    "NetworkTimeoutError",
    "PeerLostError",
]
