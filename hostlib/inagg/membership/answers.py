# SPDX-License-Identifier: Apache-2.0
"""What the controller answers, as values that the rest can rely on.

An answer comes from a controller of another version, or from something else that listens at the address. What it has
beyond these fields is ignored; what cannot be as it says makes `read` raise a ValueError; and where a rank can do
without a field, one that cannot be read counts as missing.
"""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError, WrapValidator
from pydantic_core.core_schema import ValidatorFunctionWrapHandler

_T = TypeVar("_T")

_LONGEST_S = 1e9


def _members(*names: str) -> BeforeValidator:
    """A tuple of what an object has under these names."""

    def take(document: Any) -> Any:
        if not (isinstance(document, Mapping) and document.keys() >= set(names)):
            raise ValueError(f"an object with {names} is needed")
        return tuple(document[name] for name in names)

    return BeforeValidator(take)


def _unless_unreadable(default: Any) -> WrapValidator:
    def attempt(document: Any, validate: ValidatorFunctionWrapHandler) -> Any:
        try:
            return validate(document)
        except ValidationError:
            return default

    return WrapValidator(attempt)


def _power_of_two(number: int) -> int:
    if number & (number - 1):
        raise ValueError(f"{number} is not a power of two")
    return number


def _in_order(ask: tuple[int, int]) -> tuple[int, int]:
    if ask[0] > ask[1]:
        raise ValueError(f"{ask[0]} to {ask[1]} is no range")
    return ask


def _address(text: str) -> str:
    return str(ipaddress.IPv4Address(text))


_Whole = Annotated[int, Field(ge=0, lt=1 << 63)]
_Seconds = Annotated[float, Field(gt=0, le=_LONGEST_S, allow_inf_nan=False)]
_Waited = Annotated[float, Field(ge=0, le=_LONGEST_S, allow_inf_nan=False)]
_Rank = Annotated[int, Field(ge=0, le=63)]
_Count = Annotated[tuple[_Whole, _Whole], _members("packets", "bytes")]
_Wait = Annotated[tuple[_Whole, _Waited], _members("sums", "waited_s")]
_Ask = Annotated[tuple[_Whole, _Whole], AfterValidator(_in_order), _members("first", "last")]


@dataclass(frozen=True, slots=True)
class Policy:
    """Timers that the controller hands to every worker, in seconds (docs/protocol.md, 6.1)."""

    rto_initial_s: _Seconds
    rto_min_s: _Seconds
    rto_max_s: _Seconds
    give_up_s: _Seconds
    heartbeat_interval_s: _Seconds
    heartbeat_timeout_s: _Seconds


def _rising(policy: Policy) -> Policy:
    if not policy.rto_min_s <= policy.rto_initial_s <= policy.rto_max_s:
        raise ValueError(f"no policy: {policy}")
    return policy


@dataclass(frozen=True, slots=True)
class Aggregator:
    """Where contributions go."""

    ip: Annotated[str, AfterValidator(_address)]
    mac: str
    udp_port: Annotated[int, Field(ge=1, le=65535)]


@dataclass(frozen=True, slots=True)
class Lost:
    """A rank that is gone and why; the reason "left" means that it left on purpose before the others."""

    rank: _Rank
    reason: str


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The collective, by its number in the group, in which ranks differ. calls: rank -> what it is there."""

    number: _Whole
    calls: Mapping[_Rank, str]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The controller's answer to one heartbeat.

    state: "joining", "running", "failed" or "finished". reason: why the job failed, else None. mismatch: if that is
    because ranks call different collectives. ask: first and last number of the calls to tell with the next heartbeat.
    waits: rank -> sums done, and seconds waited for other ranks to begin them, as last told.
    """

    state: str
    lost: tuple[Lost, ...]
    reason: str | None
    mismatch: Annotated[Mismatch | None, _unless_unreadable(None)] = None
    ask: Annotated[_Ask | None, _unless_unreadable(None)] = None
    waits: Annotated[Mapping[_Rank, _Wait], _unless_unreadable({})] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job as the controller sees it.

    slots: the slots granted (S of docs/protocol.md), perhaps fewer than asked. words: 256-byte words in a
    DATA packet. registered, left: ranks. counters: rank -> (packets, bytes) that the switch has admitted, None
    when not asked for or when the switch is away.
    """

    id: Annotated[int, Field(ge=1, le=65535)]
    name: str
    workers: Annotated[int, Field(ge=1, le=64)]
    state: str
    epoch: Annotated[int, Field(ge=1, lt=1 << 32)]
    slots: Annotated[int, Field(ge=2, le=1 << 16), AfterValidator(_power_of_two)]
    words: Annotated[int, Field(ge=1, le=255)]
    registered: tuple[_Rank, ...]
    left: tuple[_Rank, ...]
    lost: tuple[Lost, ...]
    reason: str | None
    policy: Annotated[Policy, AfterValidator(_rising)]
    aggregator: Aggregator
    counters: Annotated[Mapping[_Rank, _Count] | None, _unless_unreadable(None)] = None


HEARTBEAT = TypeAdapter(Heartbeat)
JOB_STATUS = TypeAdapter(JobStatus)
COUNTERS: TypeAdapter[dict[str, dict[int, tuple[int, int]]]] = TypeAdapter(dict[str, dict[_Whole, _Count]])
OBJECT: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])


def read(adapter: TypeAdapter[_T], document: Any) -> _T:
    """The document as what it should be. Raises ValueError, with the first thing that is wrong."""
    try:
        return adapter.validate_python(document)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{place}: {first['msg']}" if place else first["msg"]) from None
