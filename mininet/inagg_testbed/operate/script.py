# SPDX-License-Identifier: Apache-2.0
"""`inagg run`: a script of the user's on a testbed that is up. Its own result decides; the rest is a warning."""

import logging
import math
import time
from collections.abc import Callable, Sequence

from inagg_testbed.network.processes import describe_exit
from inagg_testbed.network.testbed import Testbed

log = logging.getLogger(__name__)

_HOPELESS_S = 10.0
_NOTICE_S = 7.0  # for ranks to say why they cannot go on, once one has failed; then they are ended


def follow_script(testbed: Testbed, command: Sequence[str], *, on_output: Callable[[str], object]) -> None:
    """Run `command` in each host to its end; `on_output` gets what rank 0 prints.

    Training goes on without a controller. Without a switch no host reaches another: ranks that have not ended within
    10 s then never will. Raises WorkerFailedError, ProcessFailedError.
    """
    group = testbed.launch(command, name="run")
    group.failure_grace_s = _NOTICE_S
    ended: dict[str, float] = {}

    def look_after_services() -> None:
        for process in testbed.services:
            status = process.poll()
            if status is None:
                continue
            if process.name not in ended:
                ended[process.name] = time.monotonic()
                log.warning(
                    "the %s ended with %s; its log is %s",
                    process.name,
                    describe_exit(status),
                    process.log_path,
                )
            elif process.name == "switch" and time.monotonic() - ended["switch"] > _HOPELESS_S:
                process.check()

    with group.workers[0].process.log_path.open(errors="replace") as said:

        def on_poll() -> None:
            on_output(said.read())
            look_after_services()

        group.follow(lambda _rank, _event: None, timeout_s=math.inf, on_poll=on_poll)
