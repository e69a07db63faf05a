# SPDX-License-Identifier: Apache-2.0
"""Waits until the controller has room for a job: slots, memory of servers, or entries in tables.

The controller answers 503 for as long as what the job needs is in use or away, and 501 if it never has it. It keeps no
line of those that wait, so the job that asks first after another has ended comes next.
"""

import logging
import time
from collections.abc import Callable

from inagg.base_errors import ControllerRefusedError
from inagg_contract.documents import JobStatus

_log = logging.getLogger(__name__)

_PAUSE_S = 0.5  # between two requests: a job that ends is noticed within this time
_NO_ROOM = 503


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
