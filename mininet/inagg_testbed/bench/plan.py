# SPDX-License-Identifier: Apache-2.0
"""The plan that the launcher of the all-reduce benchmark passes to its workers. Without torch, as the launcher is."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from inagg_baselines.catalog import BASELINES
from inagg_contract.aggregation import (
    COLOCATED,
    LEASED,
    REGISTERED,
    SERVER,
    SHARED,
    Aggregation,
    ServerKind,
    uses_servers,
    uses_switches,
)
from inagg_contract.lanes import LANE_WIDTHS, LaneWidth
from inagg_testbed.bench.element_types import ELEMENT_TYPES, ElementName, ElementType
from inagg_testbed.errors import ConfigurationError

LANE_BITS = LANE_WIDTHS[::-1]  # in the order of the plots
INAGG, INAGG_SHARED, INAGG_SERVER = "inagg", "inagg-shared", "inagg-server"
INAGG_SHARED_1, INAGG_SERVER_1 = "inagg-shared-1", "inagg-server-1"


@dataclass(frozen=True, slots=True)
class Summing:
    """What sums for a backend: options of its group."""

    aggregation: Aggregation
    servers: ServerKind = COLOCATED

    @property
    def options(self) -> dict[str, str]:
        """As fields of inagg.Options."""
        servers = {"servers": self.servers} if uses_servers(self.aggregation) else {}
        return {"aggregation": self.aggregation, **servers}


SUMMING: Mapping[str, Summing] = {
    INAGG: Summing(LEASED),
    INAGG_SHARED: Summing(SHARED),
    INAGG_SHARED_1: Summing(SHARED, REGISTERED),
    INAGG_SERVER: Summing(SERVER),
    INAGG_SERVER_1: Summing(SERVER, REGISTERED),
}
MAX_LOSS = 0.5
# Of the weights of a training, and of its first rank's batches: rank r has BATCHES_SEED + r.
WEIGHTS_SEED, BATCHES_SEED = 0, 1


def check_slots(slots: int | None) -> None:
    """Raise ConfigurationError unless slots is None or a power of two of 2 or more."""
    if slots is not None and (slots < 2 or slots & (slots - 1)):
        raise ConfigurationError(f"{slots} slots: want a power of two, 2 or more")


@dataclass(frozen=True, kw_only=True)
class BackendSpec:
    """A baseline of inagg_baselines, or what sums in lanes and their width: `inagg:BITS` in leased slots of the switch,
    `inagg-shared:BITS` in slots that jobs share, with servers in the ranks' processes behind them, `inagg-server:BITS`
    on such servers alone; `inagg-shared-1:BITS` and `inagg-server-1:BITS` with one server on a host of its own.

    lane_bits None: summed by gloo.
    """

    name: str
    lane_bits: LaneWidth | None

    @classmethod
    def parse(cls, text: str, default: LaneWidth = LANE_BITS[0]) -> "BackendSpec":
        """Parse a backend. default: the bits of lanes without `:BITS`. Raises ValueError."""
        name, _, bits = text.partition(":")
        if text in BASELINES:
            return cls(name=name, lane_bits=None)
        widths = {"": default} | {str(width): width for width in LANE_BITS}
        if name in SUMMING and bits in widths:
            return cls(name=name, lane_bits=widths[bits])
        known = ", ".join(f"{summed}:{width}" for summed in SUMMING for width in LANE_BITS)
        raise ValueError(f"backend {text!r} is none of {', '.join(BASELINES)}, {known}")

    def __str__(self) -> str:
        return self.name if self.lane_bits is None else f"{self.name}:{self.lane_bits}"

    @property
    def through_switch(self) -> bool:
        """Whether a switch sums what it can."""
        return self.name in SUMMING and uses_switches(SUMMING[self.name].aggregation)

    @property
    def on_servers(self) -> bool:
        """Whether servers alone do the sums."""
        return self.name in SUMMING and SUMMING[self.name].aggregation == SERVER

    @property
    def needs_server(self) -> bool:
        """Whether it has a server on a host of its own."""
        return self.name in SUMMING and SUMMING[self.name].servers == REGISTERED


@dataclass(frozen=True, kw_only=True)
class Case:
    """Backends that are timed in turn on tensors of one size. experiment: a name that the rows carry.

    A round is one iteration of each backend at each loss: the probability that an aggregation packet is dropped, on
    each link, in each direction. gloo sends no aggregation packets and runs once a round. An iteration is
    `back_to_back` consecutive all-reduces; its time is their mean. With small tensors, starting together costs the
    ranks more time than the all-reduce itself.
    """

    workers: int
    elements: int
    backends: tuple[str, ...]
    iterations: int = 10
    warmup: int = 2
    back_to_back: int = 1
    losses: tuple[float, ...] = (0.0,)
    experiment: str = "allreduce"
    dtype: ElementName = "float32"

    @property
    def element_type(self) -> ElementType:
        """The type of the tensors."""
        return ELEMENT_TYPES[self.dtype]

    def contestants(self) -> Iterator[tuple[str, float]]:
        """(backend, loss) in the order of a round."""
        for number, loss in enumerate(self.losses):
            for backend in self.backends:
                if number == 0 or BackendSpec.parse(backend).lane_bits is not None:
                    yield backend, loss


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What all ranks do.

    racks: the ranks below each leaf. ports: a port at each link, as switch and number. links: the interfaces of each
    host's links (`busiest_link`). words: WORDS of a DATA packet. cpu_pids: processes besides the workers; rank 0
    reports their CPU time with its own. token_file: has the operator's token, with which rank 0 injects loss.
    """

    cases: tuple[Case, ...]
    seed: int
    words: int
    racks: tuple[tuple[int, ...], ...] = ()
    ports: tuple[tuple[str, int], ...] = ()
    links: tuple[tuple[tuple[int, str], ...], ...] = ()
    cpu_pids: tuple[int, ...] = ()
    token_file: str | None = None

    def to_json(self) -> str:
        """JSON for a worker's command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """The inverse of to_json."""
        values: dict[str, Any] = json.loads(text)
        cases = tuple(
            Case(**{**case, "backends": tuple(case["backends"]), "losses": tuple(case["losses"])})
            for case in values["cases"]
        )
        racks = tuple(tuple(rack) for rack in values["racks"])
        ports = tuple((switch, port) for switch, port in values["ports"])
        links = tuple(tuple((pid, name) for pid, name in link) for link in values["links"])
        made = {"cases": cases, "racks": racks, "ports": ports, "links": links}
        made["cpu_pids"] = tuple(values["cpu_pids"])
        return cls(**{**values, **made})
