# SPDX-License-Identifier: Apache-2.0
"""`inagg run`: runs the user's script on a testbed. The script's result decides; other failures are warnings."""

import logging
import math
import time
from collections.abc import Callable, Sequence

from inagg_testbed.network.processes import describe_exit
from inagg_testbed.network.switches import is_switch
from inagg_testbed.network.testbed import Testbed

log = logging.getLogger(__name__)

_HOPELESS_S = 10.0
_NOTICE_S = 7.0  # after a rank has failed, the time for the others to report before they are ended


def follow_script(testbed: Testbed, command: Sequence[str], *, on_output: Callable[[str], object]) -> None:
    """Run `command` in each host to its end; `on_output` gets the output of rank 0.

    Training goes on without a controller. Without a switch no host reaches another, so ranks that run 10 s after the
    switch ended are ended. Raises WorkerFailedError, ProcessFailedError.
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
            elif is_switch(process) and time.monotonic() - ended[process.name] > _HOPELESS_S:
                process.check()

    with group.workers[0].process.log_path.open(errors="replace") as said:

        def on_poll() -> None:
            on_output(said.read())
            look_after_services()

        group.follow(lambda _rank, _event: None, timeout_s=math.inf, on_poll=on_poll)
