# SPDX-License-Identifier: Apache-2.0
"""The documents of the HTTP API. Strict: no value is converted to fit, and unknown fields are errors."""

import ipaddress
import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

_MAC = re.compile(r"[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}")
_BROADCAST = ipaddress.IPv4Address("255.255.255.255")


def parse_ip(text: str) -> int:
    """An IPv4 address that a host can have. Raises ValueError."""
    ip = ipaddress.IPv4Address(text)
    if ip.is_multicast or ip.is_unspecified or ip == _BROADCAST:
        raise ValueError(f"{text} is not a host's address")
    return int(ip)


def parse_mac(text: str) -> int:
    """A station's MAC address, as six hexadecimal bytes with colons. Raises ValueError."""
    if not _MAC.fullmatch(text):
        raise ValueError(f"{text!r} is not a MAC address such as 02:00:00:00:00:01")
    mac = int(text.replace(":", ""), 16)
    if mac == 0 or mac >> 40 & 1:
        raise ValueError(f"{text} is not a station's address")
    return mac


def format_ip(ip: int) -> str:
    """The inverse of parse_ip."""
    return str(ipaddress.IPv4Address(ip))


def format_mac(mac: int) -> str:
    """The inverse of parse_mac."""
    return mac.to_bytes(6, "big").hex(":")


def _checked_ip(text: str) -> str:
    parse_ip(text)
    return text


def _checked_mac(text: str) -> str:
    parse_mac(text)
    return text


Ip = Annotated[str, AfterValidator(_checked_ip)]
Mac = Annotated[str, AfterValidator(_checked_mac)]
Port = Annotated[int, Field(ge=0, le=511)]
Whole = Annotated[int, Field(ge=0, lt=1 << 63)]
State = Literal["joining", "running", "failed", "finished"]


class Document(BaseModel):
    """Base of all documents. JSON has neither infinities nor NaN, and neither has any of these."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Problem(Document):
    """Why a request was refused (RFC 9457). type: urn:inagg:KIND."""

    type: str
    title: str
    status: int
    detail: str


class NewJob(Document):
    """POST /jobs. slots: a power of two."""

    workers: Annotated[int, Field(ge=1, le=64)]
    slots: Annotated[int, Field(ge=2)]
    name: Annotated[str, Field(max_length=200)] = ""


class NewWorker(Document):
    """POST /jobs/{id}/workers. mtu: bytes of the largest IPv4 packet that gets from the worker to the switch."""

    rank: int
    ip: Ip
    mac: Mac
    udp_port: Annotated[int, Field(ge=1, le=65535)]
    port: Port | None = None
    mtu: Annotated[int, Field(ge=68, le=65535)] | None = None


class CallDocument(Document):
    """One collective that a rank has begun. digest: of its text and of all before it."""

    digest: Annotated[int, Field(ge=0, lt=1 << 32)]
    text: Annotated[str, Field(max_length=1000)]


class CallRange(Document):
    """The collectives numbered first to last."""

    first: Annotated[Whole, Field(ge=1)]
    last: Annotated[Whole, Field(ge=1)]


class Beat(Document):
    """POST /jobs/{id}/workers/{rank}/heartbeat.

    begun: collectives so far; calls: the answer to the last `ask`. sums: those through the switch that are done;
    waited_s: seconds that the rank has waited, with all of them, for other ranks to begin.
    """

    begun: Whole = 0
    asked: CallRange | None = None
    calls: Annotated[list[CallDocument], Field(max_length=1 << 14)] = []
    sums: Whole = 0
    waited_s: Annotated[float, Field(ge=0, le=1e9)] = 0.0


class Loss(Document):
    """One injected loss: PUT /loss, and an element of the answer."""

    port: Port
    direction: Literal["ingress", "egress"]
    probability: Annotated[float, Field(ge=0, le=1)]
    traffic: Literal["aggregation", "other", "all"] = "all"


class LossList(Document):
    """GET /loss."""

    loss: list[Loss]


class CountDocument(Document):
    """One cell of a counter."""

    packets: int
    bytes: int


class LostDocument(Document):
    """A rank that is gone, and why."""

    rank: int
    reason: str


class PolicyDocument(Document):
    """Timers of a job's workers, in seconds."""

    rto_initial_s: float
    rto_min_s: float
    rto_max_s: float
    give_up_s: float
    heartbeat_interval_s: float
    heartbeat_timeout_s: float


class AggregatorDocument(Document):
    """Where contributions go."""

    ip: str
    mac: str
    udp_port: int


class MismatchDocument(Document):
    """The collective in which ranks differ. calls: rank -> what it is there."""

    number: int
    calls: dict[int, str]


class WaitDocument(Document):
    """What a rank's last heartbeat said of its waiting (`Beat`)."""

    sums: int
    waited_s: float


class HeartbeatDocument(Document):
    """The answer to a heartbeat. ask: the calls that the next one is to tell. waits: by rank."""

    state: State
    lost: list[LostDocument]
    reason: str | None
    mismatch: MismatchDocument | None
    ask: CallRange | None
    waits: dict[int, WaitDocument]


class JobDocument(Document):
    """A job. counters: rank -> what the switch has admitted; null where it was not read."""

    id: int
    name: str
    workers: int
    state: State
    epoch: int
    slots: int
    words: int
    registered: list[int]
    left: list[int]
    lost: list[LostDocument]
    reason: str | None
    policy: PolicyDocument
    aggregator: AggregatorDocument
    counters: Mapping[int, CountDocument] | None


class NewJobDocument(JobDocument):
    """The answer to a creation: the job, and what every later request about it needs."""

    secret: str


class WorkerDocument(JobDocument):
    """The answer to a registration: the job, and the worker's place in it."""

    rank: int
    bit: int
    port: int


class JobList(Document):
    """GET /jobs."""

    jobs: list[JobDocument]


class Health(Document):
    """GET /health. jobs: those not ended. free_slot_versions: those not leased."""

    switch: Literal["connecting", "connected", "lost"]
    switch_error: str | None
    words: int
    slot_versions: int
    free_slot_versions: int
    aggregator: AggregatorDocument
    jobs: int
