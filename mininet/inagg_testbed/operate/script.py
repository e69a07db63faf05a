# SPDX-License-Identifier: Apache-2.0
"""`inagg run`: runs the user's script on a testbed. The script's result decides, whatever parts end meanwhile."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, closing

from inagg_testbed.errors import ProcessFailedError
from inagg_testbed.network.testbed import Testbed
from inagg_testbed.operate.parts import Attendant

# Groups of inagg fail 30 s after the loss of their way. Those of gloo may wait for half an hour.
_HOPELESS_S = 40.0
_NOTICE_S = 7.0  # after a rank has failed, the time for the others to report before they are ended


def follow_script(
    testbed: Testbed,
    command: Sequence[str],
    *,
    on_output: Callable[[str], object],
    say: Callable[[str], object],
    again: Collection[str] = (),
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run `command` in each host to its end; `on_output` gets the output of rank 0.

    say, again: see `Attendant`. environment: further variables of the ranks. Without a switch no host reaches another,
    but for a management network, so ranks are ended that still run 40 s after the last switch has ended. Raises
    WorkerFailedError, ProcessFailedError.
    """
    with ExitStack() as stack:
        attendant = stack.enter_context(closing(Attendant(testbed, say, again)))
        group = testbed.launch(command, name="run", environment=environment)
        group.failure_grace_s = _NOTICE_S
        said = stack.enter_context(group.workers[0].process.log_path.open(errors="replace"))

        def on_poll() -> None:
            on_output(said.read())
            attendant.attend()
            if not testbed.network.management and attendant.seconds_without_switches() > _HOPELESS_S:
                raise ProcessFailedError(
                    f"for {_HOPELESS_S:g} s no switch has run, and without one no rank reaches another"
                )

        group.follow(lambda _rank, _event: None, timeout_s=math.inf, on_poll=on_poll)
