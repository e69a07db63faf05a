# SPDX-License-Identifier: Apache-2.0
"""Creates a job when the controller has room for it: slots, memory of servers, or entries in tables.

The controller answers 503 for as long as what the job needs is in use or away, and 501 if it never has it. It keeps no
line of those that wait, so the job that asks first after another has ended comes next. If the switches stay full,
servers may sum for the job. The controller answers 429 to a tenant that asks too often, with the time to wait.
"""

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, repeat
from typing import Any

from inagg.base_errors import ControllerRefusedError
from inagg.membership.control import ControlClient, new_key
from inagg.options import Options
from inagg_contract.aggregation import SERVER
from inagg_contract.documents import JobStatus

_log = logging.getLogger(__name__)

_PAUSE_S = 0.5  # between two requests: a job that ends is noticed within this time
_NO_ROOM = 503
_TOO_OFTEN = 429
_SWITCHES_FULL = "full"  # the kind of the problem

# Of the message that servers sum for a group: the first one warns. A program that has one such group often has many.
_levels = chain([logging.WARNING], repeat(logging.INFO))


def create_job(
    client: ControlClient, options: Options, hosts: Sequence[str], check: Callable[[], None]
) -> JobStatus:
    """Create the job of a group, for rank 0; on servers, if the switches are full and `options` do not say otherwise.

    hosts: the address of each rank's host, by rank. check: as in `wait_for_room`.

    Raises:
        ControllerRefusedError: it cannot be created, or there was no room in time.
    """
    create = partial(
        _in_turn,
        client.create_job,
        options.setup_timeout_s,
        check,
        len(hosts),
        options.slots,
        hosts=hosts,
        servers=options.servers,
        priority=options.priority,
        name=options.own_job_name,
        job_class=options.job_class,
        on_path_loss=options.on_path_loss,
        token=options.read_token(),
        key=new_key(),
    )
    try:
        return wait_for_room(partial(create, aggregation=options.aggregation), options.wait_s, check)
    except ControllerRefusedError as full:
        if full.kind != _SWITCHES_FULL or options.fallback != "server" or options.aggregation == SERVER:
            raise
        try:
            job = create(aggregation=SERVER)
        except ControllerRefusedError as error:
            raise error.after(full) from None
        _log.log(
            next(_levels),
            "inagg: job %d: servers sum for this group, with the same bits, because the switch has no room: %s",
            job.id,
            full.detail,
        )
        return job


def _in_turn(
    create: Callable[..., JobStatus], most_s: float, check: Callable[[], None], *arguments: Any, **wishes: Any
) -> JobStatus:
    """Call `create` as soon as the controller takes a further request of the tenant, if that is within `most_s`.

    check: as in `wait_for_room`.
    """
    end = time.monotonic() + most_s
    while True:
        try:
            return create(*arguments, **wishes)
        except ControllerRefusedError as error:
            pause_s = _PAUSE_S if error.retry_after_s is None else error.retry_after_s
            again = time.monotonic() + pause_s
            if error.status != _TOO_OFTEN or again > end:
                raise
            _log.warning("inagg: waiting %g s to create the job: %s", pause_s, error.detail)
        while (left := again - time.monotonic()) > 0:
            time.sleep(min(_PAUSE_S, left))
            check()


def wait_for_room(create: Callable[[], JobStatus], wait_s: float, check: Callable[[], None]) -> JobStatus:
    """Call `create` until the controller has room for the job, for at most `wait_s` seconds; return its job.

    check: called before each further attempt; what it raises ends the wait.

    Raises:
        ControllerRefusedError: there was no room in this time, or another error.
    """
    end, waits = time.monotonic() + wait_s, False
    while True:
        try:
            return create()
        except ControllerRefusedError as error:
            if error.status != _NO_ROOM:
                raise
            left = end - time.monotonic()
            if left <= 0:
                waited = f"waited {wait_s:g} s for room, as wait_s says"
                raise ControllerRefusedError(
                    url=error.url or "",
                    request=error.request,
                    status=error.status,
                    title=error.title,
                    detail=f"{error.detail} ({waited if wait_s > 0 else 'wait_s lets a job wait for room'})",
                    kind=error.kind,
                ) from None
            if not waits:
                _log.warning("inagg: waiting up to %g s for room for the job: %s", wait_s, error.detail)
                waits = True
        time.sleep(min(_PAUSE_S, left))
        check()
