# SPDX-License-Identifier: Apache-2.0
"""Mutated datagrams give no wrong sum and make no job stand still (fuzz_datagrams, a short run)."""

from tests.fuzz.datagrams import MUTATIONS, Fuzzer

FIRST, COUNT = 1, 60


def test_mutated_datagrams_give_no_wrong_sum_and_no_job_stands_still() -> None:
    fuzzer = Fuzzer()
    with fuzzer.program:
        for seed in range(FIRST, FIRST + COUNT):
            fuzzer.run(seed)
    assert fuzzer.report.wrong == []
    assert set(fuzzer.report.jobs) == {"done", "failed"}
    assert set(fuzzer.report.mutated) == {"result", *(mutation.__name__ for mutation in MUTATIONS)}
