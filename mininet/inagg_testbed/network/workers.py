# SPDX-License-Identifier: Apache-2.0
"""Worker processes: one a host, with the environment that torch expects; their events are followed.

A worker appends events, one JSON object a line, to the file named on its command line (`events.EventLog`). The launcher
reads new events from that file. The files stay beside the logs.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from inagg_testbed.errors import WorkerFailedError
from inagg_testbed.network.processes import NodeProcess, describe_exit

# All hosts share this machine's cores: threads of one rank would spin while those of another compute.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

_POLL_S = 0.05
Event = dict[str, Any]


class EventFile:
    """Reads a growing file of JSON lines. An incomplete line waits for the next call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0

    def read(self) -> Iterator[Event]:
        """The events since the last call."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                yield json.loads(line)


@dataclass
class Worker:
    """A worker process and its events."""

    rank: int
    process: NodeProcess
    events: EventFile


@dataclass(kw_only=True)
class WorkerGroup:
    """The workers of one job.

    failure_grace_s: how long the other workers may take to report after one has failed. It is longer than the
    controller needs to notice a lost worker and tell the others.
    """

    workers: list[Worker]
    failure_grace_s: float = 15.0

    def follow(
        self,
        on_event: Callable[[int, Event], None],
        *,
        timeout_s: float,
        watch: Sequence[NodeProcess] = (),
        on_poll: Callable[[], None] = lambda: None,
    ) -> None:
        """Deliver events as (rank, event) until all workers have succeeded; see `follow_together`."""
        follow_together(
            [self],
            lambda _group, rank, event: on_event(rank, event),
            timeout_s=timeout_s,
            watch=watch,
            on_poll=on_poll,
        )

    def stop(self) -> None:
        """End all workers."""
        for worker in self.workers:
            worker.process.signal(15)
        for worker in self.workers:
            worker.process.stop()

    @property
    def running(self) -> list[Worker]:
        """The workers that have not ended."""
        return [worker for worker in self.workers if worker.process.poll() is None]

    @property
    def failed(self) -> list[Worker]:
        """The workers that have ended without success."""
        return [worker for worker in self.workers if worker.process.poll() not in (None, 0)]

    def _deliver(self, on_event: Callable[[int, Event], None]) -> None:
        for worker in self.workers:
            for event in worker.events.read():
                on_event(worker.rank, event)

    def _give_grace(self) -> None:
        deadline = time.monotonic() + self.failure_grace_s
        while time.monotonic() < deadline and self.running:
            time.sleep(_POLL_S)

    def _failure(self, first: Sequence[Worker]) -> WorkerFailedError:
        """The error. first: the workers that failed first, whose errors are the cause of the others'."""
        failures, lines = {}, []
        for worker in [*first, *(worker for worker in self.workers if worker not in first)]:
            status = worker.process.poll()
            if status == 0:
                continue
            how = (
                "did not notice the failure and was ended"
                if status is None
                else f"ended with {describe_exit(status)}"
            )
            error = worker.process.reported_error()
            said = worker.process.log_tail(6) if error is None else f"    {error}"
            failures[worker.rank] = f"{how}\n{said}"
            lines.append(f"  rank {worker.rank} {how}:\n{said}\n    log: {worker.process.log_path}")
        return WorkerFailedError(
            "\n".join([f"{len(failures)} of {len(self.workers)} workers failed:", *lines]), failures
        )

    def _late(self, running: Sequence[Worker], timeout_s: float) -> WorkerFailedError:
        failures = {worker.rank: f"still running\n{worker.process.log_tail()}" for worker in running}
        ranks = ", ".join(str(rank) for rank in failures)
        first = next(iter(failures.values()))
        return WorkerFailedError(
            f"ranks {ranks} had not ended after {timeout_s:g} s; the first of them {first}", failures
        )


def follow_together(
    groups: Sequence[WorkerGroup],
    on_event: Callable[[int, int, Event], None],
    *,
    timeout_s: float,
    watch: Sequence[NodeProcess] = (),
    on_poll: Callable[[], None] = lambda: None,
) -> None:
    """Deliver events as (index of the group, rank, event) until all workers of all groups have succeeded.

    `on_poll` is called regularly, and once after the last worker has ended. Raises WorkerFailedError when a worker
    fails (about its group) or the time is up, ProcessFailedError when a process of `watch` (the switch, the controller)
    ends. No worker runs afterwards in any case.
    """
    deadline = time.monotonic() + timeout_s

    def deliver() -> None:
        for index, group in enumerate(groups):
            group._deliver(partial(on_event, index))
        on_poll()

    try:
        while True:
            running = [(group, workers) for group in groups if (workers := group.running)]
            failed = {index: first for index, group in enumerate(groups) if (first := group.failed)}
            deliver()
            if not running and not failed:
                return
            for process in watch:
                process.check()
            for index, first in failed.items():
                groups[index]._give_grace()
                deliver()
                raise groups[index]._failure(first)
            if time.monotonic() > deadline:
                group, late = running[0]
                raise group._late(late, timeout_s)
            time.sleep(_POLL_S)
    finally:
        for group in groups:
            group.stop()


def worker_environment(
    *, rank: int, world: int, interface: str, master_address: str, master_port: int, run: str
) -> Mapping[str, str]:
    """The environment of a worker.

    master_address: of the host of rank 0. The environment has what torchrun sets for a node with one worker, the
    interface for gloo, and one thread, because the hosts share the machine's cores. Frameworks read all these
    variables: without TORCHELASTIC_RUN_ID, Lightning starts the other workers itself. NODE_RANK is other launchers'
    name for GROUP_RANK.
    """
    nodes, node, local_workers, local_rank = str(world), str(rank), "1", "0"
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": local_rank,
        "LOCAL_WORLD_SIZE": local_workers,
        "GROUP_RANK": node,
        "GROUP_WORLD_SIZE": nodes,
        "NODE_RANK": node,
        "ROLE_NAME": "default",
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(world),
        "MASTER_ADDR": master_address,
        "MASTER_PORT": str(master_port),
        "TORCHELASTIC_RUN_ID": run,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False",  # rank 0 makes the store
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "GLOO_SOCKET_IFNAME": interface,
        **ONE_THREAD,
    }
