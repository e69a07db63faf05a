# SPDX-License-Identifier: Apache-2.0
"""A forked child of a process with a transport: it has a copy of everything except the threads."""

import os

import numpy as np

from tests.conformance.loopback_switch import make_transport, run_program, silent_peer

EXIT_OF_A_CHILD = """
import os, signal, sys, threading, time
import numpy as np
from tests.conformance.loopback_switch import make_transport

transport = make_transport(("127.0.0.1", 9))
transport.submit(np.ones(1000, np.float32))
begun = threading.Event()
threading.Thread(target=lambda: (begun.set(), transport.next_done()), daemon=True).start()
begun.wait()
child = os.fork()
if child == 0:
    sys.exit(3)
end = time.monotonic() + 60
while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None and time.monotonic() < end:
    threading.Event().wait(0.01)
os.kill(child, signal.SIGKILL)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_may_drop_its_copy() -> None:
    with silent_peer() as peer:
        transport = make_transport(peer)
        child = os.fork()
        if child == 0:
            transport.close()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert status == 0
        ticket = transport.submit(np.ones(10, np.float32))
        assert not transport.wait(ticket, 0.01)
        transport.close()


def test_a_forked_child_may_end_while_a_thread_of_its_parent_waits() -> None:
    run = run_program(EXIT_OF_A_CHILD, timeout_s=120)
    assert (run.stdout, run.returncode) == ("3\n", 0), run.stderr
