# SPDX-License-Identifier: Apache-2.0
"""CPU time of processes by their clocks."""

import os
import subprocess
import sys
import time

from inagg_testbed.bench.cpu import cpu_seconds, process_clock, softirq_threads


def test_the_clock_of_this_process_is_the_one_the_library_reads() -> None:
    before = time.process_time()
    measured = time.clock_gettime(process_clock(os.getpid()))
    assert before <= measured <= time.process_time()


def test_work_of_another_process_is_counted_and_sleep_is_not() -> None:
    script = (
        "import sys, time\nwhile time.process_time() < 0.3: pass\nprint('idle', flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        spent = cpu_seconds([worker.pid])
        assert 0.3 <= spent < 0.4
        time.sleep(0.2)  # what is under test: no work, no CPU time
        assert cpu_seconds([worker.pid]) - spent < 0.05
        worker.communicate()


def test_a_process_that_has_ended_counts_nothing() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert cpu_seconds([ended.pid]) == 0.0


def test_every_core_has_its_softirq_thread() -> None:
    assert len(softirq_threads()) >= 1
    assert cpu_seconds(softirq_threads()) >= 0.0
