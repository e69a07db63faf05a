# SPDX-License-Identifier: Apache-2.0
"""Tenants: who may create jobs, of which classes, and how much the jobs of one tenant may have together.

A tenant shows a token. The controller knows only the SHA-256 digest of the token.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Annotated, ClassVar

from pydantic import AfterValidator, BeforeValidator, Field, field_validator

from inagg_contract.documents import JobClassName
from inagg_contract.settings import refuse_truth_value
from inagg_controller.errors import ForbiddenClassError
from inagg_controller.jobs.accounts import Account, Owner
from inagg_controller.tokens import same


def _listed(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _once_each(values: tuple[str, ...]) -> tuple[str, ...]:
    if not values:
        raise ValueError("must name at least one")
    if len(set(values)) < len(values):
        raise ValueError("must name each once")
    return values


# More would make the comparison with all of them slow.
MOST_DIGESTS = 4

_Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Rate = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]


class Tenant(Account):
    """A tenant, its rights and its quotas.

    token_sha256: the digests of its tokens, of which any will do. classes: that its jobs may be of; those that name no
    class are of the first one. requests_per_s, creations_per_min: limits of the requests that carry its token, and of
    the jobs that it creates; None: none.
    """

    kind: ClassVar[str] = "tenant"
    alternative: ClassVar[str] = "it may have no jobs"

    token_sha256: Annotated[
        tuple[_Digest, ...],
        BeforeValidator(_listed),
        AfterValidator(_once_each),
        Field(max_length=MOST_DIGESTS),
    ]
    classes: Annotated[tuple[JobClassName, ...], BeforeValidator(_listed), AfterValidator(_once_each)]
    requests_per_s: _Rate | None = None
    creations_per_min: _Rate | None = None

    _no_truth_values = field_validator("*", mode="before")(refuse_truth_value)

    def owns(self, owner: Owner) -> bool:
        """See Account."""
        return owner.tenant == self.name

    def check_class(self, job_class: str) -> None:
        """Raise ForbiddenClassError if its jobs may not be of a class."""
        if job_class not in self.classes:
            raise ForbiddenClassError(
                f"job_class is {job_class}; the classes of the tenant {self.name} are {', '.join(self.classes)}"
            )


def digest_of(token: str) -> str:
    """What the controller knows of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


class Tenants:
    """The tenants of a controller. Without any, everybody may create jobs of every class."""

    def __init__(self, given: Iterable[Tenant] = ()) -> None:
        self.replace(given)

    def __bool__(self) -> bool:
        return bool(self.by_name)

    def replace(self, given: Iterable[Tenant]) -> None:
        """Have other tenants from now on. Jobs of one that is gone go on, and count in no tenant's account."""
        self.by_name: Mapping[str, Tenant] = {tenant.name: tenant for tenant in given}

    def find(self, token: str) -> Tenant | None:
        """Whose token this is. Takes the same time whatever the token is."""
        digest, found = digest_of(token), None
        for tenant in self.by_name.values():
            for each in tenant.token_sha256:
                if same(digest, each):
                    found = tenant
        return found
