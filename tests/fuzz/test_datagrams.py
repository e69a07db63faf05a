# SPDX-License-Identifier: Apache-2.0
"""Mutated datagrams cause no wrong sum, and no job hangs (a short run of `tests.fuzz.datagrams`)."""

from tests.fuzz.datagrams import MUTATIONS, Fuzzer

FIRST, COUNT = 1, 60


def test_mutated_datagrams_cause_no_wrong_sum_and_no_job_hangs() -> None:
    fuzzer = Fuzzer()
    with fuzzer.program:
        for seed in range(FIRST, FIRST + COUNT):
            fuzzer.run(seed)
    assert fuzzer.report.wrong == []
    assert set(fuzzer.report.jobs) == {"done", "failed"}
    assert set(fuzzer.report.mutated) == {"result", *(mutation.__name__ for mutation in MUTATIONS)}
