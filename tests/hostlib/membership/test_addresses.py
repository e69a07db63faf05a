# SPDX-License-Identifier: Apache-2.0
"""How the ranks of a group learn their addresses: rank 0 asks the controller once, for all of them."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from torch._C._distributed_c10d import HashStore

from inagg.errors import ConfigurationError, ControllerUnreachableError, InaggError, JobError
from inagg.membership.assembly import Assembly
from inagg.membership.control import ControlClient
from inagg.membership.join import _tell_address, _telling_errors
from inagg.options import Options
from inagg_contract.documents import Health
from tests.hostlib.membership.one_rank import health_of

URL = "http://127.0.0.1:9"
HERE = "127.0.0.1"
LIMIT = timedelta(seconds=20)


class Controller(ControlClient):
    """Answers health requests; counts them. aggregator: None, without a switch; an error instead of an answer."""

    def __init__(self, aggregator: str | InaggError | None) -> None:
        super().__init__(URL)
        self.aggregator = aggregator
        self.asked = 0

    def health(self) -> Health:
        self.asked += 1
        if isinstance(self.aggregator, InaggError):
            raise self.aggregator
        return health_of(self.aggregator)


def tell(controllers: Sequence[Controller], **options: Sequence[Any]) -> list[Any]:
    """What `_tell_address` returns or raises at each rank. options: of each rank."""
    store = HashStore()

    def run(rank: int) -> Any:
        ranks = Assembly(store, rank, len(controllers), LIMIT)
        own = Options(controller=URL, **{name: given[rank] for name, given in options.items()})
        try:
            with _telling_errors(ranks):
                return _tell_address(controllers[rank], ranks, own, LIMIT)
        except InaggError as error:
            return error

    with ThreadPoolExecutor(len(controllers)) as threads:
        return list(threads.map(run, range(len(controllers))))


def test_one_rank_asks_for_all() -> None:
    controllers = [Controller(HERE) for _ in range(3)]
    assert tell(controllers) == [HERE] * 3
    assert [controller.asked for controller in controllers] == [1, 0, 0]


def test_a_rank_with_an_address_needs_no_answer_and_rank_0_asks_for_the_others() -> None:
    controllers = [Controller(HERE) for _ in range(3)]
    assert tell(controllers, address=["10.0.0.1", None, "10.0.0.3"]) == ["10.0.0.1", HERE, "10.0.0.3"]


def test_on_servers_nobody_asks() -> None:
    controllers = [Controller(HERE) for _ in range(2)]
    assert tell(controllers, aggregation=["server"] * 2) == [HERE] * 2  # towards the controller
    assert [controller.asked for controller in controllers] == [0, 0]


def test_all_ranks_learn_that_the_controller_did_not_answer() -> None:
    silent = ControllerUnreachableError(url=URL, request="GET /health", cause="refused")
    first, *others = tell([Controller(silent)] * 3)
    assert first is silent
    for other in others:
        assert isinstance(other, JobError)
        assert f"rank 0 could not create the job: {silent}" in str(other)


def test_a_controller_without_a_switch_is_an_error_of_the_settings_at_all_ranks() -> None:
    for error in tell([Controller(None)] * 2):
        assert isinstance(error, ConfigurationError)
        assert "has no switch: set aggregation to server" in str(error)


@pytest.mark.parametrize("first", ["server", "shared"])
def test_a_rank_with_another_aggregation_is_told(first: str) -> None:
    _, second = tell([Controller(HERE)] * 2, aggregation=[first, "leased"])
    assert isinstance(second, ConfigurationError)
    assert "aggregation and servers must be the same at all ranks: they are leased at rank 1" in str(second)
