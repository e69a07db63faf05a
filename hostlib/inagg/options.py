"""How a process group uses the switch: one frozen object, checked once.

A program passes it to ``init_process_group(..., pg_options=inagg.Options(...))``. A launcher that must not touch
the program sets the variables named in ``ENVIRONMENT`` instead; the two are not mixed.
"""

import os
from collections.abc import Mapping
from ipaddress import IPv4Address
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from inagg.errors import ConfigurationError

ENVIRONMENT: Mapping[str, str] = {
    "controller": "INAGG_CONTROLLER",
    "lane_bits": "INAGG_LANE_BITS",
    "slots": "INAGG_SLOTS",
    "address": "INAGG_ADDRESS",
    "switch_port": "INAGG_SWITCH_PORT",
    "fallback": "INAGG_FALLBACK",
    "rounding": "INAGG_ROUNDING",
    "seed": "INAGG_SEED",
    "spin_us": "INAGG_SPIN_US",
    "cpus": "INAGG_CPUS",
}


_MAX_CPU = 8191  # NR_CPUS of the largest Linux kernels, less one

LaneBits = Literal[8, 16, 32]


def parse_cpus(text: str) -> frozenset[int]:
    """The processors of a list such as ``"0,4-7"``.

    Raises:
        ValueError: it is not one.
    """
    cpus: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() or not dash)):
            raise ValueError('must be a list of processors such as "0,4-7"')
        if not int(first) <= int(last or first) <= _MAX_CPU:
            raise ValueError(f"processors have numbers from 0 to {_MAX_CPU}, and ranges go up")
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def _list_of_cpus(text: str) -> str:
    parse_cpus(text)
    return text


def _power_of_two(value: int) -> int:
    if value & (value - 1):
        raise ValueError("must be a power of two")
    return value


class Options(BaseModel):
    """Settings of one process group.

    Attributes:
        controller: base URL of the controller, such as ``http://10.0.0.254:9560``.
        lane_bits: bits a gradient element has on the wire, 32, 16 or 8; all ranks use the same.
        slots: packets in flight a worker asks the switch for (a power of two); it may be granted fewer. It uses as
            many of them as it takes to keep the links busy.
        address: this worker's IPv4 address towards the switch; by default, that of the route to the aggregator.
        switch_port: the switch port this host is on; may be left out when the controller knows the host.
        fallback: what to do when the job cannot be set up on the switch: ``"error"`` raises on all ranks,
            ``"inner"`` lets gloo do the sums, on all ranks and for the life of the group, with a warning.
        rounding: of elements to lanes: ``"nearest"`` (ties to even), or ``"stochastic"``, up or down with the
            probabilities that make the mean exact; reproducible from `seed`.
        seed: of stochastic rounding, 0 to 2^63 - 1; each rank draws from a sequence of its own.
        spin_us: microseconds to poll for packets before sleeping. Worth a try where each worker has a core to spare;
            on a busy machine it takes time from those that have work.
        cpus: processors that the thread which handles packets may run on, as taskset has them (``"0,4-7"``); by
            default, those of the process.
        setup_timeout_s: seconds that all ranks have to join the job.

    Raises:
        ConfigurationError: a value is missing or wrong (a ``ValueError`` as well, as pydantic has it).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    controller: Annotated[str, Field(pattern=r"^https?://\S+$")]
    lane_bits: LaneBits = 32
    slots: Annotated[int, Field(ge=2, le=1 << 16), AfterValidator(_power_of_two)] = 256
    address: IPv4Address | None = None
    switch_port: Annotated[int, Field(ge=1, le=510)] | None = None
    fallback: Literal["error", "inner"] = "error"
    rounding: Literal["nearest", "stochastic"] = "nearest"
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0
    spin_us: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    cpus: Annotated[str, AfterValidator(_list_of_cpus)] | None = None
    setup_timeout_s: Annotated[float, Field(gt=0)] = 60.0

    def __init__(self, **settings: object) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise ConfigurationError(_explain(error, {})) from error

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """The options that a launcher put in ``environment`` (by default that of the process)."""
        environment = os.environ if environment is None else environment
        settings: dict[str, object] = {
            name: environment[variable] for name, variable in ENVIRONMENT.items() if environment.get(variable)
        }
        if "lane_bits" in settings and str(settings["lane_bits"]).isdecimal():
            settings["lane_bits"] = int(str(settings["lane_bits"]))  # a Literal does not convert text
        try:
            return cls(**settings)
        except ConfigurationError as error:
            cause = error.__cause__
            if not isinstance(cause, ValidationError):
                raise
            raise ConfigurationError(_explain(cause, ENVIRONMENT)) from cause


def _explain(error: ValidationError, names: Mapping[str, str]) -> str:
    """One sentence a wrong setting, under the name the user knows it by."""
    problems = []
    for detail in error.errors():
        name = str(detail["loc"][0]) if detail["loc"] else "options"
        given = "" if detail["type"] == "missing" else f" (got {detail['input']!r})"
        problems.append(f"{names.get(name, name)}: {detail['msg']}{given}")
    return "inagg options: " + "; ".join(problems)
