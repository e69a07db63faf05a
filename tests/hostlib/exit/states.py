# SPDX-License-Identifier: Apache-2.0
"""One rank of test_exit.py: brings a group into STATE, then ends as ENDING says: python states.py STATE ENDING
[destroy].

If a rank waits in STATE, it is rank 0, which is ended by a signal; the other ranks make it wait. With fallback to gloo,
the job fails while its path is tried. The result is each rank's exit status: no ending may be an abort.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

import inagg
import inagg.membership.join
from inagg.membership.control import ControlClient
from inagg.membership.session import Session

HOLD_S = 60.0  # a waiting rank learns sooner than this that another has ended

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def say(what: str) -> None:
    print(json.dumps({"rank": rank, "said": what}), flush=True)


def fail_probing(*_: object) -> NoReturn:
    raise inagg.errors.JobError("no packet comes back")


def make() -> None:
    falls_back = os.environ.get("INAGG_FALLBACK") == "inner"
    if falls_back and rank != 0:
        Session.try_path = fail_probing  # type: ignore[assignment,method-assign]
    dist.init_process_group("inagg", timeout=timedelta(seconds=HOLD_S))
    found = inagg.stats()
    assert found["path"] == "inner" if falls_back else found["aggregation"] == os.environ["INAGG_AGGREGATION"]


def end_rank_0_soon(*_: object) -> None:
    """End rank 0 in 0.1 s with the signal that ENDING names."""
    number = getattr(signal, ENDING.removesuffix("-handled").upper(), None)
    if rank == 0 and number is not None:
        threading.Timer(0.1, os.kill, [os.getpid(), number]).start()


def before_join() -> None:
    """Rank 0 waits for ranks that do not come."""
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(*address, size, is_master=rank == 0)  # returns when all have connected
    if rank == 0:
        end_rank_0_soon()
        dist.init_process_group("inagg", store=store, rank=rank, world_size=size)
    with contextlib.suppress(RuntimeError):  # until rank 0 has ended
        store.wait(["never"], timedelta(seconds=HOLD_S))


def wait_for_nothing(check: Callable[[], None]) -> None:
    end = time.monotonic() + HOLD_S
    while time.monotonic() < end:
        time.sleep(0.01)
        check()


def before(owner: Any, method: str, action: Callable[..., None]) -> None:
    """Call `action` before each call of a method."""
    original = getattr(owner, method)

    def both(*arguments: Any, **settings: Any) -> Any:
        action(*arguments)
        return original(*arguments, **settings)

    setattr(owner, method, both)


def joining() -> None:
    """Rank 0 has registered; the others do not."""

    def enter_nothing(_client: object, _job: int, ranks: Any, *_: object) -> None:
        wait_for_nothing(ranks.check)

    if rank == 0:
        before(ControlClient, "wait_running", end_rank_0_soon)
    else:
        inagg.membership.join._enter = enter_nothing  # type: ignore[assignment]
    make()


def probing() -> None:
    """Rank 0 has sent its first packet; the others do not."""

    def try_nothing(_session: object, _timeout_s: float, check: Callable[[], None]) -> None:
        wait_for_nothing(check)

    if rank == 0:
        before(Session, "try_path", end_rank_0_soon)
    else:
        Session.try_path = try_nothing  # type: ignore[assignment,method-assign]
    make()


def joined() -> None:
    make()
    dist.all_reduce(torch.ones(3))
    dist.broadcast(torch.ones(3), 0)


def summing() -> None:
    """Sums and gloo's collectives are under way; nothing else holds their tensors."""
    make()
    for _ in range(3):
        dist.all_reduce(torch.ones(100_000), async_op=True)
        dist.broadcast(torch.ones(1000), 0, async_op=True)
        dist.all_reduce(torch.ones(1000, dtype=torch.float64), async_op=True)


def changing() -> None:
    """The job has lost its way, a sum is under way, and rank 1 does not reach the controller to change it."""
    make()
    dist.all_reduce(torch.ones(3))
    if rank != 0:
        ControlClient.frozen = reach_nobody  # type: ignore[method-assign]
    dist.barrier()
    session: Session = dist.group.WORLD._session  # type: ignore[union-attr]
    dist.all_reduce(torch.ones(100_000), async_op=True)
    if rank == 0:
        session._condition._report_lost_way(session._joined.status.epoch, "it is silent")
    end = time.monotonic() + HOLD_S
    while session._changer is None:
        assert time.monotonic() < end
        time.sleep(0.01)


def reach_nobody(*_: object, **__: object) -> NoReturn:
    time.sleep(0.1)
    raise inagg.errors.ControllerUnreachableError(url="", request="", cause="unreachable")


def waiting() -> None:
    """Rank 0 waits for a sum, and for a broadcast, that the others do not call."""
    make()
    if rank != 0:
        hold_until_failed()
    end_rank_0_soon()
    dist.all_reduce(torch.ones(3), async_op=True)
    dist.broadcast(torch.ones(3), size - 1, async_op=True)
    dist.barrier()


def leaving() -> None:
    """Rank 0 destroys the group, and waits for collectives that the others do not call."""
    make()
    if rank != 0:
        hold_until_failed()
        return
    dist.all_reduce(torch.ones(3), async_op=True)
    dist.broadcast(torch.ones(3), size - 1, async_op=True)
    end_rank_0_soon()
    dist.destroy_process_group()


def hold_until_failed() -> None:
    with contextlib.suppress(inagg.InaggError, RuntimeError):
        dist.recv(torch.ones(1), 0)


def failed() -> None:
    make()
    dist.all_reduce(torch.ones(3))
    if rank == 0:
        dist.group.WORLD.abort()  # type: ignore[union-attr]
    with contextlib.suppress(inagg.InaggError, RuntimeError):
        dist.all_reduce(torch.ones(3))
    with contextlib.suppress(inagg.InaggError, RuntimeError):
        dist.barrier()


def left() -> None:
    make()
    dist.all_reduce(torch.ones(3))
    dist.destroy_process_group()


def crossed() -> None:
    """The ranks leave two groups in different orders. Each serves one for which the other rank has to wait."""
    make()
    groups = [dist.new_group(backend="inagg") for _ in range(2)]
    for group in groups:
        dist.all_reduce(torch.ones(3), group=group)
    for group in groups if rank == 0 else reversed(groups):
        dist.destroy_process_group(group)


STATES = {
    one.__name__: one
    for one in (
        *(before_join, joining, probing, joined, summing, changing, waiting),
        *(failed, leaving, left, crossed),
    )
}
STATE, ENDING, *DESTROY = sys.argv[1:]


def handled(*_: object) -> NoReturn:
    sys.exit(3)


signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs lack
if ENDING.endswith("-handled"):
    signal.signal(signal.SIGTERM, handled)
STATES[STATE]()
say("there")
if DESTROY and dist.is_initialized():
    dist.destroy_process_group()
if ENDING == "exception":
    raise ValueError("as programs end")
if ENDING == "exit":
    sys.exit(3)
if ENDING == "fork":
    if (child := os.fork()) == 0:
        sys.exit(0)
    sys.exit(3 if os.waitpid(child, 0)[1] == 0 else 4)
if ENDING.startswith("sig"):
    os.kill(os.getpid(), getattr(signal, ENDING.removesuffix("-handled").upper()))
    time.sleep(HOLD_S)  # not reached
