# SPDX-License-Identifier: Apache-2.0
"""What the launcher sees of a training: links and their queues, switches, and this machine's processors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from inagg_testbed.network import queues, traffic
from inagg_testbed.network.queues import Ends, Queues
from inagg_testbed.network.scheduling import Threads, ThreadTimes, busiest, processor_clocks, thread_times
from inagg_testbed.network.switches import is_switch
from inagg_testbed.network.testbed import Testbed
from inagg_testbed.network.traffic import LinkBytes
from inagg_testbed.network.workers import Event


@dataclass(frozen=True)
class Surroundings:
    """Of one training, from the start of its ranks to their end.

    switch: of the thread of a switch that wanted a processor longest, and idle: the share of the processors' time, both
    from rank 0's first step to its last.
    """

    links: Sequence[LinkBytes] = ()
    queues: Mapping[Ends, Queues] = field(default_factory=dict)
    switch: ThreadTimes = field(default_factory=ThreadTimes)
    idle: float = 1.0


NOTHING_SEEN = Surroundings()


@dataclass(frozen=True)
class _Processors:
    """Counts at one time: of the switches' threads, by process, and of this machine's processors."""

    switches: Mapping[int, Threads]
    clocks: tuple[int, int]

    @classmethod
    def of(cls, testbed: Testbed) -> "_Processors":
        pids = [process.identity.pid for process in testbed.services if is_switch(process)]
        return cls({pid: thread_times(pid) for pid in pids}, processor_clocks())

    def switch_until(self, now: "_Processors") -> ThreadTimes:
        found = (busiest(self.switches.get(pid, {}), threads) for pid, threads in now.switches.items())
        return max(found, key=lambda times: times.wanted_s, default=ThreadTimes())

    def idle_until(self, now: "_Processors") -> float:
        ticks, idle = (after - before for before, after in zip(self.clocks, now.clocks, strict=True))
        return idle / max(ticks, 1)


class Watch:
    """Looks at a testbed while its ranks train. Raises NetworkError."""

    def __init__(self, testbed: Testbed) -> None:
        """The ranks are about to start."""
        self._testbed = testbed
        self._bytes, self._queues = traffic.read(testbed.network), queues.read(testbed.network)
        self._first = self._last = _Processors.of(testbed)

    def on_event(self, rank: int, event: Event) -> None:
        """A rank has reported: rank 0 after each step."""
        if rank == 0 and event["event"] == "begin":
            self._first = self._last = _Processors.of(self._testbed)
        if rank == 0 and event["event"] == "step":
            self._last = _Processors.of(self._testbed)

    def ended(self) -> Surroundings:
        """The ranks have ended."""
        network = self._testbed.network
        return Surroundings(
            links=traffic.crossed(network.fabric, self._bytes, traffic.read(network)),
            queues=queues.between(self._queues, queues.read(network)),
            switch=self._first.switch_until(self._last),
            idle=self._first.idle_until(self._last),
        )
