# SPDX-License-Identifier: Apache-2.0
"""The schedules of the jobs: random, the same for the same seed, and as busy as asked for."""

import pytest

from inagg_testbed.bench.jobs.schedule import PHASES, Phase, draw_schedule, undisturbed_s

SCHEDULE = draw_schedule("0/0/1", seconds=20.0, active=0.25, sum_s=0.01)


def test_the_same_seed_draws_the_same_phases() -> None:
    assert draw_schedule("0/0/1", seconds=20.0, active=0.25, sum_s=0.01) == SCHEDULE
    assert draw_schedule("0/0/2", seconds=20.0, active=0.25, sum_s=0.01) != SCHEDULE


def test_an_undisturbed_job_takes_the_time_asked_for_and_sums_for_its_part() -> None:
    assert undisturbed_s(SCHEDULE, 0.01) == pytest.approx(20.0, rel=0.01)
    assert sum(phase.pause_s for phase in SCHEDULE) == pytest.approx(15.0)


def test_phases_differ_in_length() -> None:
    assert len(SCHEDULE) == PHASES
    assert len({phase.sums for phase in SCHEDULE}) > PHASES // 2


def test_a_job_that_is_always_active_has_no_pauses() -> None:
    phases = draw_schedule("0/0/0", seconds=10.0, active=1.0, sum_s=0.01)
    assert {phase.pause_s for phase in phases} == {0.0}
    assert sum(phase.sums for phase in phases) == pytest.approx(1000, abs=PHASES)


def test_every_phase_has_an_all_reduce() -> None:
    phases = draw_schedule("0/0/0", seconds=1.0, active=0.5, sum_s=100.0)
    assert [phase.sums for phase in phases] == [1] * PHASES


def test_the_time_of_an_undisturbed_job_is_that_of_pauses_and_sums() -> None:
    assert undisturbed_s([Phase(0.5, 2), Phase(0.0, 4)], 0.25) == 2.0
