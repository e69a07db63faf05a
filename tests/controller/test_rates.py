# SPDX-License-Identifier: Apache-2.0
"""Limits of how often a tenant asks and creates jobs, in virtual time."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inagg_controller.errors import RateError
from inagg_controller.http.rates import Rates
from inagg_controller.jobs.tenants import Tenant, digest_of
from tests.controller.serving import Clock


def tenant(name: str = "vision", **limits: float) -> Tenant:
    return Tenant(
        name=name,
        token_sha256=(digest_of(name),),
        classes=("batch",),
        **limits,  # type: ignore[arg-type]
    )


def creates(rates: Rates, one: Tenant | None) -> bool:
    """Whether a tenant may create a job now."""
    try:
        with rates.creation(one):
            return True
    except RateError:
        return False


@pytest.mark.parametrize("most", [0.5, 1.0, 2.0, 7.0])
def test_a_rate_lets_so_many_pass_at_once_and_then_at_an_even_pace(most: float) -> None:
    clock = Clock()
    rates, one = Rates(clock), tenant(creations_per_min=most)
    assert [creates(rates, one) for _ in range(9)].count(True) == max(1, most)
    clock.now += 60 / most - 0.01
    assert not creates(rates, one)
    clock.now += 0.02
    assert [creates(rates, one), creates(rates, one)] == [True, False]
    clock.now += 3600
    assert [creates(rates, one) for _ in range(9)].count(True) == max(1, most)


@given(
    most=st.floats(0.1, 100),
    pauses=st.lists(st.floats(0, 90, allow_subnormal=False), max_size=40),
)
def test_in_any_time_no_more_pass_than_the_limit_says(most: float, pauses: Sequence[float]) -> None:
    clock = Clock()
    rates, one = Rates(clock), tenant(creations_per_min=most)
    passed = []
    for pause in pauses:
        clock.now += pause
        if creates(rates, one):
            passed.append(clock.now)
    for first, begin in enumerate(passed):
        for count, end in enumerate(passed[first:], 1):
            assert count <= max(1, most) + most * (end - begin) / 60 + 1e-6


@given(most=st.floats(0.1, 1000), asked=st.integers(1, 30))
def test_who_waits_as_long_as_the_refusal_says_passes(most: float, asked: int) -> None:
    clock = Clock()
    rates, one = Rates(clock), tenant(requests_per_s=most)
    for _ in range(asked):
        try:
            rates.take_request(one)
        except RateError as refused:
            clock.now += float(refused.headers["Retry-After"])
            rates.take_request(one)


def test_tenants_and_limits_are_counted_apart() -> None:
    rates = Rates(Clock())
    both = tenant(requests_per_s=1, creations_per_min=1)
    rates.take_request(both)
    assert [creates(rates, both), creates(rates, both)] == [True, False]
    assert creates(rates, tenant("text", creations_per_min=1))


def test_without_a_limit_or_a_tenant_everything_passes() -> None:
    rates = Rates(Clock())
    for _ in range(1000):
        rates.take_request(tenant())
        assert creates(rates, None)
        assert creates(rates, tenant())


def test_a_limit_that_is_changed_holds_for_the_next_request() -> None:
    clock = Clock()
    rates = Rates(clock)
    assert creates(rates, tenant(creations_per_min=1))
    clock.now += 1
    assert not creates(rates, tenant(creations_per_min=1))
    assert creates(rates, tenant(creations_per_min=60))
    clock.now += 10
    assert not creates(rates, tenant(creations_per_min=1))
