# SPDX-License-Identifier: Apache-2.0
"""Accounts: whose jobs have quotas together. A job counts in the accounts of its class and of its tenant.

An account counts what its jobs hold. A job therefore frees its part of a quota when it gives back what it holds.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Annotated, ClassVar, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from inagg_contract.aggregation import AGGREGATIONS, SHARED, Aggregation
from inagg_contract.documents import JobClassName, Priority
from inagg_contract.sizes import parse_size
from inagg_controller.errors import NotOfferedError, UnavailableError

# What to do if others have the slots.
FEWER_SLOTS = "or ask for fewer slots a job (INAGG_SLOTS)"

_Count = Annotated[int, Field(ge=0, lt=1 << 63)]


class Owner(NamedTuple):
    """Whose a job is, for shares and quotas.

    creator: the host that created it, None for the operator. job_class, tenant: names; no tenant: None.
    """

    creator: str | None
    job_class: str
    tenant: str | None = None

    @property
    def title(self) -> str:
        """Its class and tenant, for the log."""
        return f"class {self.job_class}" + ("" if self.tenant is None else f", tenant {self.tenant}")


class Held(NamedTuple):
    """What the jobs of an account hold. slots: leased, by switch. memory: bytes of registered servers."""

    jobs: int
    slots: Mapping[str, int]
    memory: int


def _bytes(value: object) -> object:
    return parse_size(value) if isinstance(value, str) else value


def _aggregations(value: object) -> object:
    return value.split("+") if isinstance(value, str) else value


class Account(BaseModel, ABC):
    """The quotas of a class or a tenant; None: as much as there is.

    jobs: at a time. slots: that they lease in each switch. memory: bytes that registered servers lease to them, all
    servers together. priority: the highest that a job on shared slots may ask for. aggregation: what may sum for them.
    kind: what has the account, for messages. alternative: what to do if it can have no jobs at all.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    kind: ClassVar[str]
    alternative: ClassVar[str]

    name: JobClassName
    jobs: _Count | None = None
    slots: _Count | None = None
    memory: Annotated[_Count, BeforeValidator(_bytes)] | None = None
    priority: Priority | None = None
    aggregation: Annotated[tuple[Aggregation, ...], BeforeValidator(_aggregations)] = AGGREGATIONS

    @property
    def title(self) -> str:
        """What and who it is, for messages."""
        return f"{self.kind} {self.name}"

    @abstractmethod
    def owns(self, owner: Owner) -> bool:
        """Whether the jobs of an owner count here."""

    def check(self, aggregation: Aggregation, priority: int) -> None:
        """Raise NotOfferedError if the account permits no such job.

        aggregation: what is to sum for it. priority: that it asks for.
        """
        if aggregation not in self.aggregation:
            raise NotOfferedError(
                f"aggregation = {aggregation} is not for jobs of the {self.title}: its quota is "
                f"aggregation={'+'.join(self.aggregation)}"
            )
        if aggregation == SHARED and self.priority is not None and priority > self.priority:
            raise NotOfferedError(
                f"priority is {priority}, too high for a job of the {self.title}: its quota is "
                f"priority={self.priority}"
            )

    def check_number(self, jobs: int) -> None:
        """Raise UnavailableError if there may be no further job. jobs: how many the account has."""
        if self.jobs is not None and jobs >= self.jobs:
            full = f"the {self.title} is full: its quota is jobs={self.jobs}"
            if self.jobs == 0:
                raise NotOfferedError(f"{full}; {self.alternative}")
            raise UnavailableError(f"{full}; wait until one ends")

    def slots_refusal(self, switch: str, held: int) -> str:
        """Why a job gets no slots within the quota. held: slots of the switch that jobs of the account have."""
        return (
            f"the jobs of the {self.title} have {held} slots of switch {switch}: its quota is slots={self.slots}; "
            f"wait until one ends, {FEWER_SLOTS}"
        )

    def memory_refusal(self, held: int, needed: int) -> str:
        """Why a job gets no memory within the quota. held, needed: bytes, of the account's jobs, and for this one."""
        return (
            f"the jobs of the {self.title} have {held} bytes of registered servers, and another needs {needed}: "
            f"its quota is memory={self.memory}; wait until one ends, or use servers = colocated"
        )
