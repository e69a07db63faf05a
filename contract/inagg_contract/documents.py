# SPDX-License-Identifier: Apache-2.0
"""The documents of the controller's HTTP API (docs/controller-api.md).

The controller is strict about requests: it converts no values and refuses unknown fields. A client is lenient about
answers, which may come from a controller of another version: it ignores unknown fields, and an unreadable field counts
as missing if the client can do without it (`read`).
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    Base64UrlBytes,
    BaseModel,
    ConfigDict,
    Field,
    Strict,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    WrapValidator,
    model_validator,
)
from pydantic_core.core_schema import ValidatorFunctionWrapHandler

from inagg_contract.addresses import parse_ip, parse_mac, parse_multicast_network
from inagg_contract.aggregation import COLOCATED, LEASED, AskedAggregation, ServerKind
from inagg_contract.ranks import LONGEST_HOST_NAME, LONGEST_JOB_NAME

DEFAULT_PORT = 9560
DEFAULT_SERVER_PORT = 18754  # UDP, of an aggregation server; a switch takes packets to INAGG_PORT for its own
MOST_WORKERS = 4096
MOST_BODY_BYTES = 1 << 20  # a heartbeat may contain the texts of thousands of collectives
MOST_BEATS = 256  # heartbeats in one request
MOST_CALLS = 4096  # collectives that a heartbeat tells
MOST_RESULT_BYTES = 1 << 19  # of datagrams in one request or answer about a change of way
LONGEST_CALL = 1000  # characters
LONGEST_SECRET = 4096  # characters
LONGEST_REASON = 2000  # characters
# A network that is cut between the controller and all ranks does not end a job at once. So a controller that hears no
# rank of a job, and a rank that hears no controller, wait for so many heartbeat timeouts.
OUTAGE_TIMEOUTS = 4
# From the loss of a job's way until all ranks have gone on, over all ways that are lost meanwhile.
LONGEST_CHANGE_S = 30.0
# The kind of the problem that a rank's address is not that of the host that registers it.
FOREIGN_ADDRESS = "foreign-address"
# The kind of the problem that the jobs of a tenant may not be of this class.
FORBIDDEN_CLASS = "forbidden-class"

_LENIENT = {"lenient": True}
_LONGEST_S = 1e9
_MOST_FIELDS = 32

_T = TypeVar("_T")


def _checked_ip(text: str) -> str:
    parse_ip(text)
    return text


def _checked_mac(text: str) -> str:
    parse_mac(text)
    return text


def _checked_multicast(text: str) -> str:
    parse_multicast_network(text)
    return text


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("characters that cannot be printed")
    return text


def _power_of_two(number: int) -> int:
    if number & (number - 1):
        raise ValueError(f"{number} is not a power of two")
    return number


def _unless_unreadable(default: Any) -> WrapValidator:
    """A field that a client can do without: it reads an invalid value as `default`."""

    def attempt(value: Any, validate: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        try:
            return validate(value)
        except ValidationError:
            if info.context == _LENIENT:
                return default
            raise

    return WrapValidator(attempt)


Ip = Annotated[str, AfterValidator(_checked_ip)]
Mac = Annotated[str, AfterValidator(_checked_mac)]
Port = Annotated[int, Field(ge=0, le=511)]
UdpPort = Annotated[int, Field(ge=1, le=65535)]
NonNegative = Annotated[int, Field(ge=0, lt=1 << 63)]
Rank = Annotated[int, Field(ge=0, lt=MOST_WORKERS)]
Seconds = Annotated[float, Field(gt=0, le=_LONGEST_S)]
# The state of a job. Not a Literal, so that a client can read a state that it does not know.
State = Annotated[
    str, Field(json_schema_extra={"enum": ["joining", "running", "changing", "failed", "finished"]})
]
ENDED_STATES = ("failed", "finished")

ServerName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]*$")]
Priority = Annotated[int, Field(ge=0, le=255)]
JobClassName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
DEFAULT_JOB_CLASS = "default"
# What a job may try when its way is lost, in order (docs/protocol.md, 6.4).
PathLoss = Literal["same", "other", "servers", "inner", "fail"]
JobName = Annotated[str, Field(max_length=LONGEST_JOB_NAME), AfterValidator(_printable)]
HostName = Annotated[str, Field(max_length=LONGEST_HOST_NAME, pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]*)?$")]
RackName = HostName


class Request(BaseModel):
    """Base of the documents that clients send."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _few_fields(cls, document: Any) -> Any:
        """Refuse many unknown fields at once: each is an error of its own."""
        if isinstance(document, dict) and len(document) > _MOST_FIELDS:
            raise ValueError(f"{len(document)} fields")
        return document


class Answer(BaseModel):
    """Base of the documents that the controller sends. No number is infinite or NaN, because JSON has neither."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class Problem(Answer):
    """Why a request was refused (RFC 9457). type: urn:inagg:KIND."""

    type: str
    title: str
    status: int
    detail: str


# The header Idempotency-Key of POST /jobs: characters.
LONGEST_KEY = 64


class NewJob(Request):
    """The body of POST /jobs.

    slots: a power of two. name: for messages and metrics, such as that of the script. hosts: the IPv4 address of each
    rank's host, by rank; may be missing if the controller has one switch, and with aggregation "server". servers: of a
    job that has servers. priority: of a job on shared slots: its contributions evict what jobs of a lower priority have
    in a slot; with equal ones, the first in a slot keeps it. job_class: one of the controller's, whose quotas hold for
    all jobs of the class together; by default, the first one of the tenant, or "default". on_path_loss: what to try, in
    order, when what sums for the job is lost; without any the job fails then.
    """

    workers: Annotated[int, Field(ge=1, le=MOST_WORKERS)]
    slots: Annotated[int, Field(ge=2, lt=1 << 63)]
    name: JobName = ""
    hosts: Annotated[list[Ip], Field(max_length=MOST_WORKERS, fail_fast=True)] | None = None
    aggregation: AskedAggregation = LEASED
    servers: ServerKind = COLOCATED
    priority: Priority = 0
    job_class: JobClassName | None = None
    on_path_loss: Annotated[list[PathLoss], Field(max_length=5)] = []


class NewWorker(Request):
    """The body of POST /jobs/{id}/workers.

    mac, port: needed for a job on switches, not used otherwise. mtu: bytes of the largest IPv4 packet on the path to
    the aggregator. server_udp_port: of the server that this worker's process runs, in a job with colocated servers.
    host: the name of the worker's host, for messages and metrics. rack: the name of its rack, within which servers sum
    first; empty: that of the host's switch, if the controller knows it.
    """

    rank: NonNegative
    ip: Ip
    udp_port: UdpPort
    mac: Mac | None = None
    port: Port | None = None
    mtu: Annotated[int, Field(ge=68, le=65535)] | None = None
    server_udp_port: UdpPort | None = None
    host: HostName = ""
    rack: RackName = ""


class CallDocument(Request):
    """One collective that a rank has started. digest: over its text and the texts of all collectives before it."""

    digest: Annotated[int, Field(ge=0, lt=1 << 32)]
    text: Annotated[str, Field(max_length=LONGEST_CALL)]


class CallRange(BaseModel):
    """The collectives with numbers from first to last."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    first: Annotated[NonNegative, Field(ge=1)]
    last: Annotated[NonNegative, Field(ge=1)]


def _ascending(calls: CallRange | None) -> CallRange | None:
    if calls is not None and calls.first > calls.last:
        raise ValueError(f"{calls.first} to {calls.last} is not a range")
    return calls


class Chunks(BaseModel):
    """Chunks of DATA that servers of a job have completed, by where they were summed (docs/protocol.md, 5.7).

    switches: in switches. both: in part. servers: in the server alone. They only grow.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    switches: NonNegative
    both: NonNegative
    servers: NonNegative


class LongestWait(BaseModel):
    """The longest of a rank's waits for other ranks: in the sum that is the group's collective of this number; 0:
    unknown."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    collective: NonNegative
    waited_s: Annotated[float, Field(ge=0, le=_LONGEST_S)]


class RankTraffic(BaseModel):
    """What a rank has sent and received in a job since it began (docs/performance.md).

    packets: contributions, repeated ones included, and queries. retransmits: contributions that were sent again.
    chunks: those whose result has arrived. window: packets that may be in flight; window_limit: the most. rtt_s: the
    smoothed round-trip time to what sums, 0 if unknown. Counts only grow.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    packets: NonNegative
    retransmits: NonNegative
    chunks: NonNegative
    window: NonNegative
    window_limit: NonNegative
    rtt_s: Annotated[float, Field(ge=0, le=_LONGEST_S)] = 0.0


class Beat(Request):
    """The body of POST /jobs/{id}/workers/{rank}/heartbeat.

    begun: number of collectives so far. asked, calls: the last `ask` and its answer. sums: number of completed sums
    through the switch. waited_s: total time that the rank has waited for other ranks to start these sums; longest_wait:
    in one of them. loading_s: total time of its program in data loaders. rtt_s: round-trip time to the nearest other
    rank, 0 if unknown. chunks: of the server in the rank's process, if it serves the job. switch_silent: the job's
    first way was through a switch that does not answer this rank now. traffic: only for GET /overview.
    """

    begun: NonNegative = 0
    asked: CallRange | None = None
    calls: Annotated[list[CallDocument], Field(max_length=MOST_CALLS, fail_fast=True)] = []
    sums: NonNegative = 0
    waited_s: Annotated[float, Field(ge=0, le=_LONGEST_S)] = 0.0
    longest_wait: LongestWait | None = None
    loading_s: Annotated[float, Field(ge=0, le=_LONGEST_S)] = 0.0
    rtt_s: Annotated[float, Field(ge=0, le=_LONGEST_S)] = 0.0
    chunks: Chunks | None = None
    switch_silent: bool = False
    traffic: RankTraffic | None = None

    @model_validator(mode="after")
    def _answers_what_was_asked(self) -> Self:
        asked = 0 if self.asked is None else self.asked.last - self.asked.first + 1
        if len(self.calls) > max(asked, 0):
            raise ValueError(f"calls has {len(self.calls)} collectives, but asked is about {max(asked, 0)}")
        return self


class LostWay(Request):
    """The body of POST /jobs/{id}/workers/{rank}/lost-way: what sums for the job does not answer this rank.

    epoch: of the way.
    """

    epoch: Annotated[int, Field(ge=1, lt=1 << 32)]
    reason: Annotated[str, Field(max_length=LONGEST_REASON)]


class Beside(Request):
    """Where a rank and the server in its process can be reached in a network beside that of the switches."""

    ip: Ip
    udp_port: UdpPort
    server_udp_port: UdpPort


class Frozen(Request):
    """The body of POST /jobs/{id}/workers/{rank}/frozen.

    epoch: of the way that the job has lost. chunks: for each slot the chunk that the rank completes next, 32 bits each,
    big-endian. server_udp_port: of the server in the rank's process, if it can have one. beside: null if the host
    reaches the controller through the network of the switches.
    """

    epoch: Annotated[int, Field(ge=1, lt=1 << 32)]
    chunks: Annotated[Base64UrlBytes, Field(max_length=4 << 16), Strict(False)]
    server_udp_port: UdpPort | None = None
    beside: Beside | None = None


class ResultDocument(BaseModel):
    """The result of a chunk: the datagram as it came."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    chunk: Annotated[int, Field(ge=0, lt=1 << 32)]
    datagram: Annotated[Base64UrlBytes, Field(min_length=1, max_length=1 << 16)]


class Exchange(Request):
    """The body of POST /jobs/{id}/workers/{rank}/results.

    epoch: of the way that the job has lost. given: results that others lack. wanted: chunks whose results this rank
    still lacks.
    """

    epoch: Annotated[int, Field(ge=1, lt=1 << 32)]
    given: Annotated[list[ResultDocument], Field(max_length=1 << 16, fail_fast=True)] = []
    wanted: Annotated[list[NonNegative], Field(max_length=1 << 16, fail_fast=True)] = []


class Resumed(Request):
    """The body of POST /jobs/{id}/workers/{rank}/resumed. epoch: of the way on which the rank has gone on."""

    epoch: Annotated[int, Field(ge=1, lt=1 << 32)]


class RankBeat(Request):
    """The heartbeat of one rank among those of POST /heartbeats. secret: of the job."""

    job: Annotated[int, Field(ge=1, le=65535)]
    rank: NonNegative
    secret: Annotated[str, Field(max_length=LONGEST_SECRET)]
    beat: Beat


class RankBeats(Request):
    """The body of POST /heartbeats: those of the groups of one process."""

    beats: Annotated[list[RankBeat], Field(max_length=MOST_BEATS, fail_fast=True)]


class NewServer(Request):
    """The body of POST /servers: an aggregation server starts, or starts again.

    name: its own, or the default, IP:PORT. memory: bytes that it gives to jobs.
    """

    name: ServerName
    ip: Ip
    udp_port: UdpPort
    memory: Annotated[int, Field(ge=0, lt=1 << 63)]


class ServedJobId(Request):
    """A job, as a server names it."""

    id: Annotated[int, Field(ge=1, le=65535)]
    epoch: Annotated[int, Field(ge=1, lt=1 << 32)]


class RefusedJob(ServedJobId):
    """A job that a server cannot serve, and why."""

    reason: Annotated[str, Field(max_length=LONGEST_REASON)]


class CountedJob(ServedJobId):
    """What a server has summed for a job."""

    chunks: Chunks


class ServerBeat(Request):
    """The body of POST /servers/{name}/heartbeat.

    instance: from the answer to POST /servers. serving: the jobs that it admits packets of now. counted: for these, and
    once more for those that it has ceased to serve. unknown: datagrams that it has received of no job that it serves,
    or from none of the job's workers.
    """

    instance: NonNegative
    serving: Annotated[list[ServedJobId], Field(max_length=1 << 16, fail_fast=True)] = []
    refused: Annotated[list[RefusedJob], Field(max_length=1 << 10, fail_fast=True)] = []
    counted: Annotated[list[CountedJob], Field(max_length=1 << 16, fail_fast=True)] = []
    unknown: Annotated[int, Field(ge=0, lt=1 << 64)] = 0


class Loss(Request):
    """One injected loss: the body of PUT /loss, and an element of LossList.

    switch: its name; may be missing if there is one.
    """

    switch: Annotated[str, Field(max_length=64)] | None = None
    port: Port
    direction: Literal["ingress", "egress"]
    probability: Annotated[float, Field(ge=0, le=1)]
    traffic: Literal["aggregation", "other", "all"] = "all"


class LossList(Answer):
    """The answer to requests about /loss."""

    loss: list[Loss]


class PacketCount(Answer):
    """The value of a counter."""

    packets: NonNegative
    bytes: NonNegative


class Lost(Answer):
    """A rank that is gone, and the reason; "left" means that it left the job before the others."""

    rank: Rank
    reason: str


class Policy(Answer):
    """Timers of a job's workers, in seconds (docs/protocol.md, 6.1)."""

    rto_initial_s: Seconds
    rto_min_s: Seconds
    rto_max_s: Seconds
    give_up_s: Seconds
    heartbeat_interval_s: Seconds
    heartbeat_timeout_s: Seconds

    @model_validator(mode="after")
    def _rising(self) -> Self:
        if not self.rto_min_s <= self.rto_initial_s <= self.rto_max_s:
            raise ValueError(f"inconsistent timers: {self}")
        return self


class Aggregator(Answer):
    """The address of a switch, to which workers send contributions."""

    ip: Ip
    mac: str
    udp_port: UdpPort


class Endpoint(Answer):
    """An IPv4 multicast address and a UDP port."""

    ip: Annotated[str, AfterValidator(_checked_multicast)]
    udp_port: UdpPort


class WorkerAddress(Answer):
    """Where a worker's packets come from and its results go to. rack: empty if it is not known."""

    rank: Rank
    ip: Ip
    udp_port: UdpPort
    rack: str = ""


class RankPlace(Answer):
    """Where a registered rank is. host: the name of its host, empty if it has told none."""

    rank: Rank
    ip: Ip
    host: str = ""


class JobServer(Answer):
    """A server of a job. rank: of the worker in whose process it runs; null: it runs by itself."""

    name: str
    ip: Ip
    udp_port: UdpPort
    rank: Rank | None = None


class Relay(Answer):
    """The switch that combines contributions on their way to the servers, and multicasts the results: the root of the
    job's tree."""

    ip: Ip
    udp_port: UdpPort


class ServedJob(Answer):
    """What a server has to know of a job: it sums the runs of chunks that are its index's (docs/protocol.md, 5.6).

    first_chunk: the first of the chunk fields. relay: in a job on shared slots.
    """

    id: Annotated[int, Field(ge=1, le=65535)]
    epoch: Annotated[int, Field(ge=1, lt=1 << 32)]
    first_chunk: Annotated[int, Field(ge=0, lt=1 << 32)] = 0
    slots: Annotated[int, Field(ge=2, le=1 << 16), AfterValidator(_power_of_two)]
    words: Annotated[int, Field(ge=1, le=255)]
    index: NonNegative
    servers: Annotated[int, Field(ge=1)]
    workers: tuple[WorkerAddress, ...]
    relay: Relay | None = None


class ServerOrders(Answer):
    """The answer to a server's heartbeat: all jobs that it is to serve."""

    jobs: tuple[ServedJob, ...]


class ServerRegistration(Answer):
    """The answer to POST /servers.

    instance: of this start of the server; its heartbeats have it. heartbeat_interval_s: the longest time between two;
    heartbeat_timeout_s: after which the server is lost, and the jobs that it serves have failed.
    """

    instance: NonNegative
    heartbeat_interval_s: Seconds
    heartbeat_timeout_s: Seconds


class SameCall(Answer):
    """What some ranks have called."""

    text: str
    ranks: tuple[Rank, ...]


class Mismatch(Answer):
    """The first collective in which ranks differ. number: its number in the group. calls: each text once."""

    number: NonNegative
    calls: tuple[SameCall, ...]


class Waits(Answer):
    """A rank's sums, its waiting and what may make it late, from its last heartbeat (`Beat`)."""

    sums: NonNegative
    waited_s: Annotated[float, Field(ge=0, le=_LONGEST_S)]
    longest_wait: LongestWait | None = None
    loading_s: Annotated[float, Field(ge=0, le=_LONGEST_S)] = 0.0
    rtt_s: Annotated[float, Field(ge=0, le=_LONGEST_S)] = 0.0


class Heartbeat(Answer):
    """The answer to a heartbeat.

    reason: why the job failed. mismatch: set if ranks called different collectives. ask: the calls that the next
    heartbeat must contain. waits: by rank. chunks: as in JobStatus. lost_way: the epoch of the way that the job has
    lost, while it changes its way; lost_why: the reason.
    """

    state: State
    lost: tuple[Lost, ...]
    reason: str | None
    mismatch: Annotated[Mismatch | None, _unless_unreadable(None)] = None
    ask: Annotated[CallRange | None, AfterValidator(_ascending), _unless_unreadable(None)] = None
    waits: Annotated[Mapping[Rank, Waits], _unless_unreadable({})] = {}
    chunks: Annotated[Chunks | None, _unless_unreadable(None)] = None
    lost_way: int | None = None
    lost_why: str | None = None


class RankAnswer(Answer):
    """The answer to one of several heartbeats: what POST /jobs/{id}/workers/{rank}/heartbeat would have answered."""

    heartbeat: Heartbeat | None = None
    problem: Problem | None = None


class RankAnswers(Answer):
    """The answer to POST /heartbeats, in the order of the request."""

    answers: tuple[RankAnswer, ...]


class TreeSwitch(Answer):
    """A switch of a job's tree.

    aggregator_ip: its own address, at which it answers pings. first_slot_version, slot_versions: its lease. ranks: of
    the workers that it sums for itself. below: the switches whose partial sums it adds. above: the switches that get
    its partial sums, in runs of chunks; none at a root. threads: of the switch, each of which has the packets of some
    runs of chunks (docs/protocol.md, 6.1).
    """

    switch: str
    aggregator_ip: Ip
    first_slot_version: NonNegative
    slot_versions: NonNegative
    ranks: tuple[Rank, ...]
    below: tuple[str, ...]
    above: tuple[str, ...]
    threads: Annotated[int, Field(ge=1, le=64), AfterValidator(_power_of_two)] = 1


class Displaced(Answer):
    """How often the switches gave a shared slot of a job to another contribution, and sent on what was in it.

    evicted: to one of a job of a higher priority. expired: because the sum there was too old.
    """

    evicted: NonNegative
    expired: NonNegative


class JobStatus(Answer):
    """A job.

    slots: the granted number (S of docs/protocol.md), which may be less than requested. words: 256-byte words in a DATA
    packet. aggregator: of the switch of rank 0, or in the answer to a registration of the worker's switch. results: the
    multicast address of its results; null: each worker gets them at its own. registered, left: ranks. counters: rank ->
    contributions that its switch has admitted; null if not read. tree: its switches, each after those above it.

    aggregation: "leased", "shared", "server" or, after a change of way, "inner": the ranks themselves, over gloo. With
    "server" there is no aggregator, results address or tree, with "inner" no server either. In a job with "shared"
    there are both these and servers, and its tree has no slot versions of its own. relay: of its servers. servers: by
    index, known once all ranks have registered; each sums runs of chunks (docs/protocol.md, 5.6). members: all workers,
    known then too. serving: the indices of the servers that admit its packets; the job runs when all do, and its
    switches have its entries. chunks: of all its servers, as of their last heartbeats or those of the ranks that run
    them; null without servers. displaced: at all its switches; null without shared slots. Only GET /jobs/J without wait
    reads counters and displaced; elsewhere they are null. ranks: those that have registered; only in its answer and in
    that of GET /jobs. tenant: whose token created the job; null: the operator's, or none. priority: in shared slots.
    on_path_loss: as in NewJob. changes: how often the job has gone on another way. first_chunk: the first of the chunk
    fields on its way (docs/protocol.md, 6.4).
    """

    id: Annotated[int, Field(ge=1, le=65535)]
    name: str
    workers: Annotated[int, Field(ge=1, le=MOST_WORKERS)]
    state: State
    epoch: Annotated[int, Field(ge=1, lt=1 << 32)]
    first_chunk: Annotated[int, Field(ge=0, lt=1 << 32)] = 0
    slots: Annotated[int, Field(ge=2, le=1 << 16), AfterValidator(_power_of_two)]
    words: Annotated[int, Field(ge=1, le=255)]
    registered: tuple[Rank, ...]
    left: tuple[Rank, ...]
    lost: tuple[Lost, ...]
    reason: str | None
    policy: Policy
    aggregator: Aggregator | None = None
    results: Annotated[Endpoint | None, _unless_unreadable(None)] = None
    counters: Annotated[Mapping[Rank, PacketCount] | None, _unless_unreadable(None)] = None
    tree: Annotated[tuple[TreeSwitch, ...], _unless_unreadable(())] = ()
    aggregation: str = LEASED
    relay: Relay | None = None
    job_class: str = DEFAULT_JOB_CLASS
    tenant: str | None = None
    priority: int = 0
    servers: tuple[JobServer, ...] = ()
    members: tuple[WorkerAddress, ...] = ()
    serving: tuple[NonNegative, ...] = ()
    chunks: Annotated[Chunks | None, _unless_unreadable(None)] = None
    displaced: Annotated[Displaced | None, _unless_unreadable(None)] = None
    ranks: Annotated[tuple[RankPlace, ...], _unless_unreadable(())] = ()
    on_path_loss: tuple[str, ...] = ()
    changes: int = 0

    @property
    def roots(self) -> int:
        """Switches at the top of the tree; 1 if the tree is not known."""
        return sum(not switch.above for switch in self.tree) or 1

    @property
    def threads(self) -> int:
        """Threads of the switch of the tree that has most; 1 if the tree is not known."""
        return max((switch.threads for switch in self.tree), default=1)


class CreatedJob(JobStatus):
    """The answer to POST /jobs: the job, and the secret that all later requests about it need."""

    secret: str


class RegisteredWorker(JobStatus):
    """The answer to a registration: the job, and the worker's rank and place.

    member: its number at the switch, or its rank in a job on servers alone; its packets have it as their rank. switch,
    port: where its host is, in a job on switches.
    """

    rank: Rank
    member: Annotated[int, Field(ge=0, lt=64)]
    switch: str | None = None
    port: int | None = None


class WayChange(Answer):
    """The state of a change of way, for one rank.

    state, reason: of the job. lost: the epoch of the way that it has lost; null: none. frozen: all ranks have. lacks:
    chunks whose results the rank lacks. gives: those that others need from it, and that it has not given. results: of
    the chunks that it wants, those that are here. way: what sums for the job from now on; null: not known yet. ready:
    ranks can go on there. lost_for_s: seconds since the job has lost its way.
    """

    state: State
    reason: str | None = None
    lost: int | None = None
    frozen: bool = False
    lacks: tuple[int, ...] = ()
    gives: tuple[int, ...] = ()
    results: tuple[ResultDocument, ...] = ()
    way: RegisteredWorker | None = None
    ready: bool = False
    lost_for_s: float = 0.0


class JobList(Answer):
    """The answer to GET /jobs."""

    jobs: list[JobStatus]


class PortRefusals(Answer):
    """Packets that an edge port of a switch has refused because a host must not send them (docs/counters.md).

    packets: by counter, since the controller began. ago_s: seconds since the controller saw the last ones.
    """

    port: int
    packets: dict[str, NonNegative]
    ago_s: float


class SwitchHealth(Answer):
    """A switch. error: why it is not connected. slot_versions: those that jobs can lease, without the shared slots.

    free_slot_versions: number of those not leased. refusals: of the ports that have refused packets in the last ten
    minutes.
    """

    name: str
    state: Literal["connecting", "connected", "lost"]
    error: str | None
    slot_versions: int
    free_slot_versions: int
    aggregator: Aggregator
    refusals: tuple[PortRefusals, ...] = ()


class LinkHealth(Answer):
    """A link between switches. ends: as in leaf1:49. reason: why it is down, else empty. ordinary: whether ordinary
    traffic uses it."""

    ends: tuple[str, str]
    state: Literal["unknown", "up", "down"]
    reason: str
    ordinary: bool = False


class ServerHealth(Answer):
    """A registered aggregation server. memory, free_memory: bytes for jobs. jobs: number that it is to serve. unknown:
    datagrams that it has received of no job that it serves, or from none of the job's workers."""

    name: str
    ip: Ip
    udp_port: UdpPort
    memory: NonNegative
    free_memory: NonNegative
    jobs: NonNegative
    unknown: NonNegative = 0


class Health(Answer):
    """The answer to GET /health.

    switch: connected if all switches are; else the state of one that is not, and switch_error why; none if the
    controller has no switch. slot_versions, free_slot_versions: of the switch with the fewest free, of those that can
    be leased. shared_slots: of each switch. aggregator: of the first switch. jobs: number of active jobs.
    """

    switch: Literal["connecting", "connected", "lost", "none"]
    switch_error: str | None
    words: int
    slot_versions: int
    free_slot_versions: int
    shared_slots: int = 0
    aggregator: Aggregator | None = None
    jobs: int
    switches: tuple[SwitchHealth, ...]
    links: tuple[LinkHealth, ...]
    servers: tuple[ServerHealth, ...] = ()


class OverviewRank(Answer):
    """A rank of a job.

    at: the switch's port of its host, as in leaf1:2; null: not known. state: awaited (it has not registered), joined,
    left, or lost, with the reason. heartbeat_age_s: since it was last heard; null once it has left. waits, traffic: as
    of its last heartbeat. bytes: of its contributions, as its switch has admitted them; null if not read.
    """

    rank: Rank
    host: str = ""
    ip: str = ""
    at: str | None = None
    state: str
    reason: str | None = None
    heartbeat_age_s: float | None = None
    waits: Waits | None = None
    traffic: RankTraffic | None = None
    bytes: int | None = None


class JobWay(Answer):
    """What has summed for a job, for a time. title: for people. reason: why the job left the way before; empty for its
    first way. ago_s: seconds since the job began to run there; taken_s: since it had lost the way before."""

    title: str
    aggregation: str
    reason: str
    ago_s: float
    taken_s: float


class SlotRange(Answer):
    """Slot versions that a job leases in a switch: `count` from `first` on.

    contributions: how many of the `members` contributions to a sum are in some of the versions, at even distances; all
    in one whose sum is complete. Empty if the switch was not read: BMv2 does not show them, and at most 256 versions of
    a switch are read.
    """

    switch: str
    first: NonNegative
    count: NonNegative
    members: NonNegative = 0
    contributions: tuple[int, ...] = ()


class LateRank(Answer):
    """A rank that others wait for. late_s: a sum. cause: computation, data loading or network."""

    rank: Rank
    late_s: float
    cause: str


class OverviewJob(Answer):
    """A job. title: of what sums for it. ways: what has summed for it, the last one last, at most 50; those from before
    the controller's last start are forgotten. changing: why it looks for another way; null: it does not. payload_bytes:
    of one chunk. late: the ranks that others have waited for in the last seconds, the latest first; empty too if nobody
    has watched for so long."""

    id: int
    name: str
    state: State
    reason: str | None
    changing: str | None
    workers: int
    slots: int
    payload_bytes: int
    aggregation: str
    title: str
    tenant: str | None
    priority: int
    age_s: float
    ways: tuple[JobWay, ...]
    leases: tuple[SlotRange, ...]
    ranks: tuple[OverviewRank, ...]
    late: tuple[LateRank, ...] = ()


class PortTraffic(Answer):
    """Bytes of packets of jobs that a switch has received from a port, and of results that it has sent there. They
    begin anew with the switch's program."""

    switch: str
    port: int
    received: NonNegative
    results_sent: NonNegative


class OverviewHost(Answer):
    """A host of the topology. at: the port that it is at, as in leaf1:2."""

    name: str
    ip: Ip
    at: str


class LogLine(Answer):
    """A line of the controller's log. at: seconds since 1970."""

    at: float
    level: str
    text: str


class Overview(Answer):
    """The answer to GET /overview, and an event of GET /events.

    at: seconds since 1970. operators: whether the request had the operator's token; without it only health is given.
    ports: without those that have carried no packet of a job, and without switches that could not be read. log: the
    last lines; in an event those since the event before.
    """

    at: float
    version: str
    operators: bool
    health: Health
    jobs: tuple[OverviewJob, ...] = ()
    hosts: tuple[OverviewHost, ...] = ()
    ports: tuple[PortTraffic, ...] = ()
    log: tuple[LogLine, ...] = ()


# The answer to GET /counters: switch -> counter -> port -> count.
Counters = dict[str, dict[str, dict[int, PacketCount]]]


def dump(counters: Counters) -> str:
    """Counters as indented JSON."""
    return TypeAdapter(Counters).dump_json(counters, indent=1).decode()


def read(kind: type[_T], document: Any) -> _T:
    """Read an answer leniently, as a client. Raises ValueError with the first error."""
    try:
        return TypeAdapter(kind).validate_python(document, context=_LENIENT)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{place}: {first['msg']}" if place else first["msg"]) from None
