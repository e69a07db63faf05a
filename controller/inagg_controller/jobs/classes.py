# SPDX-License-Identifier: Apache-2.0
"""Job classes: what the jobs of one class may have together, as the operator says.

A class counts what its jobs hold. A job therefore frees its part of a quota when it gives back what it holds.
"""

from collections.abc import Mapping
from typing import Annotated, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from inagg_contract.aggregation import AGGREGATIONS, SHARED, Aggregation
from inagg_contract.documents import DEFAULT_JOB_CLASS, JobClassName, Priority
from inagg_contract.sizes import parse_size
from inagg_controller.errors import NotOfferedError, UnavailableError

# What to do if others have the slots.
FEWER_SLOTS = "or ask for fewer slots a job (INAGG_SLOTS)"

_Count = Annotated[int, Field(ge=0, lt=1 << 63)]


def _bytes(value: object) -> object:
    return parse_size(value) if isinstance(value, str) else value


def _aggregations(value: object) -> object:
    return value.split("+") if isinstance(value, str) else value


class JobClass(BaseModel):
    """A class and its quotas; None: as much as there is.

    jobs: at a time. slots: that they lease in each switch. memory: bytes that registered servers lease to them, all
    servers together. priority: the highest that a job on shared slots may ask for. aggregation: what may sum for them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: JobClassName
    jobs: _Count | None = None
    slots: _Count | None = None
    memory: Annotated[_Count, BeforeValidator(_bytes)] | None = None
    priority: Priority | None = None
    aggregation: Annotated[tuple[Aggregation, ...], BeforeValidator(_aggregations)] = AGGREGATIONS

    def check(self, aggregation: Aggregation, priority: int, jobs: int) -> None:
        """Raise UnavailableError if a job may not be one of this class.

        aggregation: what is to sum for it. priority: that it asks for. jobs: how many the class has.
        """
        if aggregation not in self.aggregation:
            raise NotOfferedError(
                f"aggregation = {aggregation} is not for jobs of the class {self.name}: its quota is "
                f"aggregation={'+'.join(self.aggregation)}"
            )
        if aggregation == SHARED and self.priority is not None and priority > self.priority:
            raise NotOfferedError(
                f"priority is {priority}, too high for a job of the class {self.name}: its quota is "
                f"priority={self.priority}"
            )
        if self.jobs is not None and jobs >= self.jobs:
            full = f"the class {self.name} is full: its quota is jobs={self.jobs}"
            if self.jobs == 0:
                raise NotOfferedError(f"{full}; set another job_class")
            raise UnavailableError(f"{full}; wait until one ends")

    def slots_refusal(self, switch: str, held: int) -> str:
        """Why a job gets no slots within the quota. held: slots of the switch that jobs of the class have."""
        return (
            f"the jobs of the class {self.name} have {held} slots of switch {switch}: its quota is slots={self.slots}; "
            f"wait until one ends, {FEWER_SLOTS}"
        )

    def memory_refusal(self, held: int, needed: int) -> str:
        """Why a job gets no memory within the quota. held, needed: bytes, of jobs of the class, and for this one."""
        return (
            f"the jobs of the class {self.name} have {held} bytes of registered servers, and another needs {needed}: "
            f"its quota is memory={self.memory}; wait until one ends, or use servers = colocated"
        )


class Held(NamedTuple):
    """What the jobs of a class hold. slots: leased, by switch. memory: bytes of registered servers."""

    jobs: int
    slots: Mapping[str, int]
    memory: int


def known_classes(given: tuple[JobClass, ...]) -> dict[str, JobClass]:
    """The classes by name: those that the operator gives, and the default one."""
    classes = {each.name: each for each in given}
    classes.setdefault(DEFAULT_JOB_CLASS, JobClass(name=DEFAULT_JOB_CLASS))
    return classes
