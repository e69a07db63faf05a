# SPDX-License-Identifier: Apache-2.0
"""Measures the steps of a training program from outside, and has it train under an architecture.

A step ends when an optimizer's `step` returns, and begins when the one before ended. Its time has these parts, of the
thread that calls the optimizer:
- ran: on a processor. queued: ready to run, while others had the processors (Linux: /proc/thread-self/schedstat);
- loaded: waited for data loaders;
- slept: all else, which is waiting for gradients or weights of other ranks.
The group knows how long collectives were under way (`Tally.collecting_s`). What was under way while the thread did not
sleep was overlapped. An exchange of weights happens after the optimizer's step, in the same thread: it counts as under
way.

Events: "begin" after the first step; "step" with the parts in seconds, the processor time of all threads, bytes of this
host's links, and the loss if the program calls `backward` on one; "group" when the training is over, with what the
group has seen since the first step; "spans" with the last steps of `inagg.spans`; "end".
"""

import contextlib
import os
import resource
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from inagg import hooks, spans, takeover
from inagg.at_exit import living
from inagg.counters import REDUCTIONS, Stats, Tally, difference
from inagg.errors import ConfigurationError
from inagg.explanation import explain_figures
from inagg.loading import loading_s
from inagg.membership.sockets import tcp_sockets
from inagg.process_group import ProcessGroup
from inagg.training_spans import watch_optimizers, watch_training
from inagg_baselines import collectives, exchanges
from inagg_baselines.attachment import attach
from inagg_baselines.catalog import Architecture
from inagg_baselines.theory import Racks
from inagg_contract.lateness import late_ranks
from inagg_testbed.compare.ways import Way
from inagg_testbed.events import EventLog, sent_segments, tcp_timeouts
from inagg_testbed.network.interfaces import interface_bytes
from inagg_testbed.network.scheduling import Threads, busiest, thread_times
from inagg_testbed.weights import sha256

_MIN_RTT, _MIN_RTT_AT = struct.Struct("I"), 148  # tcpi_min_rtt, in microseconds
_SCHEDSTAT = Path("/proc/thread-self/schedstat")


@dataclass
class Reading:
    """Seconds and bytes so far."""

    seconds: float
    ran: float
    queued: float
    loaded: float
    collecting: float
    exchanging: float
    cpu: float
    sent: float
    received: float

    def since(self, *earlier: "Reading") -> "Reading":
        """What was added, less what each further one has."""
        first, *others = earlier
        rows = zip(astuple(self), astuple(first), *map(astuple, others), strict=True)
        return Reading(*(row[0] - sum(row[1:]) for row in rows))


_NOTHING = Reading(*[0.0] * len(fields(Reading)))


class Probe:
    """One rank's. racks: the ranks below each leaf."""

    def __init__(self, log: EventLog, way: Way, racks: Racks) -> None:
        self._log, self._way, self._racks = log, way, racks
        self._exchanging_s = 0.0
        self._skipped = _NOTHING
        self._spans = spans.start()
        self._tallies: set[Tally] = set()
        self._last: Reading | None = None
        self._groups: Mapping[str, Any] = {}
        # Of groups, the TCP connections and the threads, at the first step.
        self._before: tuple[list[Mapping[str, Any]], tuple[int, int], int, Threads] | None = None
        self._steps = 0
        self._loss: torch.Tensor | None = None
        self._models: list[DistributedDataParallel] = []
        self._exchanges: dict[
            int, tuple[set[int], Any]
        ] = {}  # by model: its parameters, and what exchanges them
        self._all_reduce: collectives.AllReduce | None = None
        # One at a time, in the order of DDP's buckets, which is the same at all ranks.
        self._summing = ThreadPoolExecutor(1, thread_name_prefix="inagg-baseline")

    def install(self) -> None:
        """From now on groups are taken over, and steps are measured."""
        without_job = "" if self._way.baseline is None else f"--with {self._way}"
        takeover.install({takeover.VARIABLE: ",".join(takeover.BACKENDS)}, without_job=without_job)
        self._after_construction(DistributedDataParallel, self._on_model)
        watch_training(self._spans, ends_steps=False)  # before the next, which ends them
        watch_optimizers(self._on_step)
        self._watch_losses()

    # --- the architecture

    @staticmethod
    def _after_construction(kind: type, act: Callable[[Any], None]) -> None:
        construct = kind.__init__  # type: ignore[misc]

        def constructed(self: Any, *arguments: Any, **settings: Any) -> None:
            construct(self, *arguments, **settings)
            act(self)

        kind.__init__ = constructed  # type: ignore[misc]

    def _on_model(self, model: DistributedDataParallel) -> None:
        self._models.append(model)
        group: Any = model.process_group
        ranks = dist.get_world_size()
        if self._way.baseline is not None and not self._way.gloo_sums and group.size() != ranks:
            raise ConfigurationError(
                f"--with {self._way} is for models that are parallel over all {ranks} ranks, and the program has one "
                f"that is parallel over {group.size()}"
            )
        if self._way.exchanges_weights:
            self._exchange(model)
        elif self._way.baseline is not None and not self._way.gloo_sums:
            if self._all_reduce is None:
                self._all_reduce = self._make_all_reduce(self._way.baseline)
            model.register_comm_hook(group, self._sum_bucket)
        elif self._way.feedback:
            assert self._way.backend is not None
            assert self._way.backend.lane_bits is not None
            state = hooks.NarrowLanes(model.module, group, lane_bits=self._way.backend.lane_bits)
            model.register_comm_hook(state, hooks.narrow_lanes)

    def _exchange(self, model: DistributedDataParallel) -> None:
        """Have the ranks exchange the model's weights, and DDP sum no gradients."""
        assert self._way.baseline is not None
        with takeover.suspended():
            exchange = exchanges.make(self._way.baseline, self._racks)
        if (watch := getattr(model.process_group, "training", None)) is not None:
            watch.end(failed=True)  # it would warn that the ranks sum nothing
        attach(exchange, model)  # no optimizer: `_on_step` sees them all
        self._exchanges[id(model)] = {id(each) for each in model.parameters()}, exchange

    def _make_all_reduce(self, baseline: Architecture) -> collectives.AllReduce:
        with takeover.suspended():
            return collectives.make(baseline, dist.new_group(backend="gloo"), self._racks)

    def _sum_bucket(
        self,
        group: Any,
        bucket: dist.GradBucket,  # type: ignore[name-defined]  # torch's stub lacks it
    ) -> torch.futures.Future[torch.Tensor]:
        """DDP's communication hook: the mean of a bucket, by a baseline."""
        buffer: torch.Tensor = bucket.buffer()
        begun = torch.futures.Future[None]()
        call = group.tally.begin("all_reduce", buffer.nbytes)

        def sum_it(_: object) -> torch.Tensor:
            try:
                assert self._all_reduce is not None
                self._all_reduce(buffer)
                buffer.div_(group.size())
                return buffer
            finally:
                call.end()

        mean = begun.then(sum_it)
        self._summing.submit(begun.set_result, None)
        return mean

    # --- the measurement

    def _read(self) -> Reading:
        ran, queued = _processor_times()
        ends = [both for name, both in interface_bytes(os.getpid()).items() if name != "lo"]
        return Reading(
            seconds=time.monotonic(),
            ran=ran,
            queued=queued,
            loaded=loading_s(),
            collecting=self._collecting_s(),
            exchanging=self._exchanging_s,
            cpu=time.process_time(),
            sent=sum(sent for _, sent in ends),
            received=sum(received for received, _ in ends),
        )

    def _collecting_s(self) -> float:
        """Of all groups, also those that have ended."""
        self._tallies.update(group.tally for group in living if isinstance(group, ProcessGroup))
        return sum(tally.collecting_s() for tally in self._tallies)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What happens in the block is not part of the training."""
        before = self._read()
        with self._spans.during(spans.EVALUATION):
            yield
        self._spans.go_on(time.monotonic())
        during = self._read().since(before)
        self._skipped = Reading(
            *(one + other for one, other in zip(astuple(self._skipped), astuple(during), strict=True))
        )

    def _on_step(self, optimizer: Optimizer, _begin_s: float, _end_s: float) -> None:
        own = {id(each) for group in optimizer.param_groups for each in group["params"]}
        began = time.monotonic()
        for parameters, exchange in self._exchanges.values():
            if own & parameters:
                with self._spans.during(spans.EXCHANGE):
                    exchange.after_step()
        self._exchanging_s += time.monotonic() - began
        now = self._read()
        self._spans.end_step(now.seconds)
        if self._last is None:
            self._check_program()
            stats = [group.stats() for group in self._measured().values()]
            self._before = stats, sent_segments(), tcp_timeouts(), _other_threads()
            self._log.write("begin", elements=sum(_elements(model) for model in self._models))
        else:
            step = now.since(self._last, self._skipped)
            self._steps += 1
            self._log.write("step", step=self._steps - 1, loss=self._loss_of_step(), **vars(step))
        self._last, self._skipped, self._loss = now, _NOTHING, None

    def _check_program(self) -> None:
        """Raise ConfigurationError if the program does not train under the architecture."""
        if not dist.is_initialized():
            raise ConfigurationError(
                "the program has made no process group before its optimizer's first step"
            )
        if self._way.backend is not None and any(
            group.path == "inner" for group in self._measured().values()
        ):
            raise ConfigurationError(f"--with {self._way}: gloo does the sums instead; the log says why")
        if self._models or self._way.gloo_sums or (self._way.baseline is None and not self._way.feedback):
            return
        raise ConfigurationError(
            f"--with {self._way} needs a DistributedDataParallel, to sum its gradients or exchange its weights, and"
            " this program has made none before its optimizer's first step"
        )

    def _watch_losses(self) -> None:
        backward = torch.Tensor.backward

        def noting(tensor: torch.Tensor, *arguments: Any, **settings: Any) -> Any:
            if tensor.numel() == 1:
                self._loss = tensor.detach()
            return backward(tensor, *arguments, **settings)  # type: ignore[no-untyped-call]

        torch.Tensor.backward = noting  # type: ignore[assignment, method-assign]

    def note_loss(self, loss: torch.Tensor | None) -> None:
        """Of the step that ends next, for a model whose loss does not go backward by itself."""
        self._loss = loss

    def name_groups(self, groups: Mapping[str, Any]) -> None:
        """Groups whose calls are reported by name. The first is the model's."""
        self._groups = groups

    def _loss_of_step(self) -> float | None:
        return None if self._loss is None else float(self._loss)

    def finish(self) -> None:
        """The training is over: all ranks get the same weights. All ranks call this, before the groups end."""
        self._report()
        while self._exchanges:
            _, (_, exchange) = self._exchanges.popitem()
            exchange.finish()

    def _group(self) -> Any:
        """That of the model, else the world."""
        return self._models[0].process_group if self._models else dist.group.WORLD

    def _measured(self) -> Mapping[str, Any]:
        return self._groups or {"": self._group()}

    def _report(self) -> None:
        """Write what the groups have seen since the first step, once."""
        if self._before is None:
            return
        (stats, (segments, again), timeouts, threads), self._before = self._before, None
        named, groups = self._measured(), []
        for before, group in zip(stats, named.values(), strict=True):
            group.catch_up()
            groups.append(difference(before, Stats(group.stats)))
        since = max(groups, key=lambda each: _reduced(each, "seconds"))
        all_segments, all_again = sent_segments()
        tcp = (all_again - again) / max(all_segments - segments, 1)
        own = since["retransmits"] / max(since["packets_sent"], 1) if "packets_sent" in since else 0.0
        self._log.write(
            "group",
            shares=explain_figures(since).shares,
            late=late_ranks(since.get("waits", {})),
            sums=sum(_reduced(each, "ended") for each in groups),
            resent=max(tcp, own),
            resent_packets=all_again - again + since.get("retransmits", 0),
            least_rtt_s=_least_rtt_s(),
            timeouts=tcp_timeouts() - timeouts,
            switch_rtt_s=since.get("least_rtt_s"),
            serving=asdict(busiest(threads, _other_threads())),
        )
        self._log.write(
            "groups",
            groups=[
                {"name": name, "ranks": group.size(), "path": since["path"], "calls": since["calls"]}
                for (name, group), since in zip(named.items(), groups, strict=True)
            ],
        )
        self._log.write("spans", steps=self._spans.steps())

    def finish_with_groups(self) -> None:
        """Have `finish` called when the program destroys its groups."""
        destroy = dist.destroy_process_group

        def destroying(group: Any = None) -> None:
            failing = sys.exc_info()[0] is not None  # then it must not wait for other ranks
            if (group is None or group is dist.group.WORLD) and not failing:
                self.finish()
            destroy(group)

        dist.destroy_process_group = dist.distributed_c10d.destroy_process_group = destroying

    def end(self) -> None:
        """The program has ended."""
        if dist.is_initialized():
            self.finish()
        self._summing.shutdown()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self._log.write(
            "end", peak_bytes=peak, weights=[sha256(model.parameters()) for model in self._models]
        )


def _least_rtt_s() -> float | None:
    """The kernel's least round-trip time to another host, in seconds, of any TCP connection but those to the controller
    (linux/tcp.h: tcpi_min_rtt)."""
    controller = urlsplit(os.environ.get("INAGG_CONTROLLER", "")).hostname
    found = []
    for tcp in tcp_sockets():
        with contextlib.suppress(OSError):
            own, other = (name[0].removeprefix("::ffff:") for name in (tcp.getsockname(), tcp.getpeername()))
            if other not in (controller, own):
                info = tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _MIN_RTT_AT + _MIN_RTT.size)
                found.append(_MIN_RTT.unpack_from(info, _MIN_RTT_AT)[0] / 1e6)
    return min(found, default=None)


def _other_threads() -> Threads:
    """Times of all threads but this one."""
    own = threading.get_native_id()
    return {thread: times for thread, times in thread_times(os.getpid()).items() if thread != own}


def _processor_times() -> tuple[float, float]:
    """Seconds in which this thread ran, and was ready to run. Without the kernel's statistics the second is 0."""
    try:
        ran, queued, _ = _SCHEDSTAT.read_text().split()
    except FileNotFoundError:
        return time.thread_time(), 0.0
    return int(ran) / 1e9, int(queued) / 1e9


def _reduced(figures: Mapping[str, Any], name: str) -> float:
    """A figure of the reductions of a group."""
    return float(sum(call[name] for kind, call in figures["calls"].items() if kind in REDUCTIONS))


def _elements(model: torch.nn.Module) -> int:
    return sum(each.numel() for each in model.parameters() if each.requires_grad)
