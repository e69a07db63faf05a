# SPDX-License-Identifier: Apache-2.0
"""Limits of how often a tenant asks and creates jobs. Requests of ranks carry a job's secret, and do not count.

The generic cell rate algorithm (ITU-T I.371, annex A): a limit of n in a time lets n pass at once, and then one after
each nth of the time.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from inagg_controller.errors import RateError
from inagg_controller.jobs.tenants import Tenant


class Rates:
    """Counts the requests of tenants. A tenant whose limits change is counted on."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # When the next would be due if they came at an even pace, by tenant and limit.
        self._due: dict[tuple[str, str], float] = {}

    def take_request(self, tenant: Tenant) -> None:
        """Count a request that carries the tenant's token. Raises RateError."""
        if tenant.requests_per_s is not None:
            self._take(tenant, "requests_per_s", tenant.requests_per_s, 1.0)

    @contextmanager
    def creation(self, tenant: Tenant | None) -> Iterator[None]:
        """Count a job of the tenant that is created meanwhile; one that cannot be does not count. Raises RateError."""
        if tenant is None or tenant.creations_per_min is None:
            yield
            return
        limit, most = "creations_per_min", tenant.creations_per_min
        self._take(tenant, limit, most, 60.0)
        try:
            yield
        except BaseException:
            self._due[tenant.name, limit] -= 60.0 / most
            raise

    def _take(self, tenant: Tenant, limit: str, most: float, period_s: float) -> None:
        now, pace_s = self._clock(), period_s / most
        due = max(self._due.get((tenant.name, limit), now), now)
        wait_s = due - now - max(period_s - pace_s, 0.0)
        if wait_s > 1e-9:
            raise RateError(f"the tenant {tenant.name} asks too often: its limit is {limit}={most:g}", wait_s)
        self._due[tenant.name, limit] = due + pace_s
