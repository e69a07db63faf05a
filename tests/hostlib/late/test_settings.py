# SPDX-License-Identifier: Apache-2.0
"""Settings of a deadline, and the keys in torch's store by which ranks say that they wait."""

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel

import inagg.hooks
from inagg.errors import ConfigurationError
from inagg.late.roll_call import RollCall
from inagg.late.turns import Bucket, Turn


@pytest.fixture(autouse=True)
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A world of one rank, without a controller."""
    monkeypatch.delenv("INAGG_CONTROLLER", raising=False)
    dist.init_process_group("inagg", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def wrapped(*layers: torch.nn.Module, **settings: Any) -> DistributedDataParallel:
    return DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), *layers), **settings)


@pytest.mark.parametrize(
    "setting",
    [{"least": 0}, {"least": 2}, {"quantile": 0}, {"quantile": 1.1}, {"factor": 0.9}, {"most_behind": 0}],
)
def test_wrong_settings_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigurationError, match="least is 1 to 1, the number of ranks; quantile more than 0"
    ):
        inagg.hooks.Deadline(wrapped(), **setting)


def test_it_takes_the_model_in_ddp() -> None:
    module: Any = torch.nn.Linear(4, 4)
    with pytest.raises(ConfigurationError, match="in DistributedDataParallel, not Linear"):
        inagg.hooks.Deadline(module)


@pytest.mark.parametrize(
    ("model", "remedy"),
    [
        (lambda: wrapped(torch.nn.BatchNorm1d(4)), "forward_sync_buffers=False"),
        (lambda: wrapped(find_unused_parameters=True), "find_unused_parameters=False, or static_graph=True"),
    ],
)
def test_keep_up_refuses_a_model_whose_passes_call_collectives(model: Any, remedy: str) -> None:
    state = inagg.hooks.Deadline(model())
    with pytest.raises(ConfigurationError, match=f"make DistributedDataParallel with {remedy}"):
        next(state.keep_up([1], lambda: None))


@pytest.mark.filterwarnings("ignore:.*broadcast_buffers:FutureWarning")  # older releases have only this name
def test_keep_up_takes_a_model_whose_buffers_stay_at_each_rank() -> None:
    state = inagg.hooks.Deadline(wrapped(torch.nn.BatchNorm1d(4), broadcast_buffers=False))
    assert list(state.keep_up("abc", lambda: None)) == ["a", "b", "c"]


def test_a_checkpoint_of_another_model_is_refused() -> None:
    state = inagg.hooks.Deadline(wrapped())
    with pytest.raises(
        ConfigurationError, match="the checkpoint has 3 elements of parameter 0, the model 16"
    ):
        state.load_state_dict({"left": {0: torch.ones(3)}})
    assert state.state_dict() == {"left": {}}


def test_what_is_owed_is_rescaled_and_flushed() -> None:
    model = wrapped()
    state = inagg.hooks.Deadline(model)
    model.register_comm_hook(state, inagg.hooks.deadline)
    model(torch.ones(1, 4)).sum().backward()
    state.load_state_dict({"left": {1: torch.full((4,), 8.0)}})
    state.rescale(0.5)
    assert state.flush()
    weight, bias = model.parameters()
    assert weight.grad is not None
    assert bias.grad is not None
    assert (weight.grad.abs().sum().item(), bias.grad.tolist()) == (0, [4.0] * 4)
    assert not state.flush()


def test_what_a_checkpoint_brings_is_kept_until_the_first_step() -> None:
    model = wrapped()
    state = inagg.hooks.Deadline(model)
    model.register_comm_hook(state, inagg.hooks.deadline)
    state.load_state_dict({"left": {1: torch.full((4,), 8.0)}})
    assert not state.flush()
    model(torch.ones(1, 4)).sum().backward()
    bias = list(model.parameters())[1]
    assert bias.grad is not None
    assert bias.grad.tolist() == [1.0 + 8.0] * 4


def test_the_sums_have_the_timeout_of_the_models_group() -> None:
    group = dist.new_group([0], timeout=timedelta(seconds=45))
    assert inagg.hooks.Deadline(wrapped(process_group=group)).group.timeout_s == 45


def test_the_models_group_may_be_one_that_torch_does_not_know() -> None:
    group = inagg.ProcessGroup.create(HashStore(), 0, 1)
    model = wrapped(process_group=group)
    state = inagg.hooks.Deadline(model)
    model.register_comm_hook(state, inagg.hooks.deadline)
    model(torch.ones(1, 4)).sum().backward()
    assert not state.flush()
    group.shutdown()
    assert not group.before_leaving


def test_a_rank_alone_has_no_thread() -> None:
    inagg.hooks.Deadline(wrapped())
    assert "inagg-stand-in" not in {thread.name for thread in threading.enumerate()}


def test_ranks_count_who_waits_with_the_same_bucket_and_delete_old_keys() -> None:
    def bucket(last: bool) -> Bucket:
        return Bucket((), (), (), torch.float32, torch.device("cpu"), last)

    store = HashStore()
    ours, theirs = RollCall(store), RollCall(store)
    ours.here(Turn(5, 0), bucket(False))
    theirs.here(Turn(5, 0), bucket(False))
    assert ours.count(Turn(5, 0), bucket(False)) == 2
    assert ours.count(Turn(5, 0), bucket(True)) == 0
    assert ours.count(Turn(6, 0), bucket(False)) == 0
    assert store.num_keys() == 3
    theirs.here(Turn(7, 0), bucket(False))
    assert ours.count(Turn(7, 0), bucket(False)) == 1
    assert store.num_keys() == 2  # of steps 6 and 7
