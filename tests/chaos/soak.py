# SPDX-License-Identifier: Apache-2.0
"""python -m tests.chaos.soak: train for long while a part dies, stands still or is cut off every few seconds.

Afterwards the same training runs undisturbed, on other links, for as many steps: all weights must be the same.
Descriptors, memory and leases must be steady.
"""

import argparse
import json
import random
import signal
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from inagg_testbed.network.fabric import Fabric
from inagg_testbed.network.lifecycle import signals_raise, tagged_processes
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.testbed import Testbed, open_testbed
from inagg_testbed.network.workers import Event
from tests.chaos.training import EACH, descriptors, resident_bytes

RANKS = 4
_SWITCHES = ("leaf1", "leaf2", "spine1", "spine2")
_EVERY_S = 10.0
# The longest faults. A rank that stands still for the time of a heartbeat is lost.
_AWAY_S, _STILL_S, _CUT_S = 8.0, 5.0, 8.0
# Steps after the end is known, so that no rank is past it.
_AHEAD = 10 * EACH
_END_S = 120.0
# What a process may have more of at the end than in the middle.
_MORE_DESCRIPTORS, _MORE_BYTES = 2, 16 << 20


@dataclass(frozen=True)
class Strike:
    """A fault. kind: kill, until it is started again; stop: SIGSTOP; link: a link of a switch is cut."""

    kind: str
    part: str
    seconds: float


@dataclass
class Sample:
    """Of a process or of the leases, at a time in seconds since the beginning."""

    at: float
    name: str
    descriptors: int
    resident: int


def strikes(seed: int) -> Iterator[Strike]:
    """Faults without end, one after the other."""
    draws = random.Random(seed)
    while True:
        kind = draws.choice(["kill", "kill", "stop", "link"])
        if kind == "kill":
            yield Strike(
                kind, draws.choice([*_SWITCHES, "controller"]), draws.choice([0.0, draws.uniform(0, _AWAY_S)])
            )
        elif kind == "stop":
            ranks = [f"rank{rank}" for rank in range(RANKS)]
            yield Strike(kind, draws.choice([*_SWITCHES, "controller", *ranks]), draws.uniform(0.2, _STILL_S))
        else:
            yield Strike(kind, draws.choice(_SWITCHES), draws.uniform(0.2, _CUT_S))


@contextmanager
def struck(strike: Strike, testbed: Testbed) -> Iterator[None]:
    """The fault begins before the block, and ends after it."""
    if strike.kind == "kill":
        testbed.kill(strike.part)
        yield
        testbed.restart(strike.part)
    elif strike.kind == "stop":
        testbed.signal(strike.part, signal.SIGSTOP)
        yield
        testbed.signal(strike.part, signal.SIGCONT)
    else:
        trunks = testbed.network.fabric.trunks
        port = next(one.lower for one in trunks if strike.part in (one.lower.switch, one.upper.switch))
        testbed.set_link(port, "down")
        yield
        testbed.set_link(port, "up")


class Training:
    """The ranks, seen from the launcher."""

    def __init__(self, testbed: Testbed) -> None:
        self._last = testbed.results / "last"
        command = [sys.executable, "-m", "tests.chaos.training", "{events}", str(self._last)]
        self.group = testbed.launch(command, name="soak", workers=RANKS)
        self.events: list[list[Event]] = [[] for _ in range(RANKS)]

    def look(self) -> None:
        """Read events. Raises RuntimeError if a rank has failed."""
        for worker, events in zip(self.group.workers, self.events, strict=True):
            events.extend(worker.events.read())
            if worker.process.poll() not in (None, 0):
                raise RuntimeError(f"{worker.process.failure('failed')}")

    def watch(self, seconds: float) -> None:
        """Look for so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.05)
            self.look()

    @property
    def step(self) -> int:
        """The last step that a rank has told of."""
        return max((events[-1].get("number", 0) for events in self.events if events), default=0)

    def end(self, last: int, most_s: float) -> None:
        """Let all ranks end after a step. Raises RuntimeError."""
        fresh = self._last.with_suffix(".new")
        fresh.write_text(str(last))
        fresh.rename(self._last)
        deadline = time.monotonic() + most_s
        while any(worker.process.poll() is None for worker in self.group.workers):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the ranks have not ended within {most_s:g} s")
            self.watch(0.1)
        self.look()

    def steps(self, rank: int) -> list[Event]:
        """A rank's events about steps."""
        return [event for event in self.events[rank] if event["event"] == "step"]


class Soak:
    """A run with faults, and what was seen. samples: of the testbed's services, after each fault. ranks: their events.
    broken: what should not have been."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._strikes = strikes(seed)
        self.struck: list[Strike] = []
        self.samples: list[Sample] = []
        self.ranks: list[list[Event]] = []
        self.broken: list[str] = []

    def run(self, seconds: float) -> None:
        """Train for so long."""
        with open_testbed(
            fabric=Fabric.parse("leaf-spine:2x2x2", hosts=RANKS),
            link=LinkSpec.parse("100mbit"),
            management=True,
            results_root=self._folder,
        ) as testbed:
            try:
                self._train(testbed, seconds)
            except RuntimeError as error:
                self.broken.append(str(error))
            run_id = testbed.run.id
        self.broken += [f"left behind: process {each.pid}" for each in tagged_processes(run_id, besides=0)]

    def _train(self, testbed: Testbed, seconds: float) -> None:
        controller = testbed.controller
        assert controller is not None
        whole = controller.health().free_slot_versions
        training = Training(testbed)
        self.ranks = training.events
        begin = time.monotonic()
        while training.step == 0:
            training.watch(0.1)
        while (at := time.monotonic() - begin) < seconds:
            strike = next(self._strikes)
            self.struck.append(strike)
            print(f"{at:6.0f} s, step {training.step:6}: {strike}", flush=True)
            with struck(strike, testbed):
                training.watch(strike.seconds)
            training.watch(_EVERY_S - strike.seconds)
            self._sample(testbed, begin)
        training.end(training.step + _AHEAD, _END_S)
        deadline = time.monotonic() + _EVERY_S
        while controller.health().free_slot_versions != whole:
            if time.monotonic() > deadline:
                self.broken.append(
                    f"{controller.health().free_slot_versions} of {whole} slot versions are free"
                )
                break
            time.sleep(0.1)

    def _sample(self, testbed: Testbed, begin: float) -> None:
        at = time.monotonic() - begin
        for one in testbed.services:
            if one.poll() is None:
                process = one.identity.pid
                self.samples.append(Sample(at, one.name, descriptors(process), resident_bytes(process)))

    def judge(self, right: Sequence[Event]) -> None:
        """Compare the weights with those of an undisturbed run, and the second half of the run with the first."""
        digests = {event["number"]: event["digest"] for event in right}
        for rank, events in enumerate(self.ranks):
            steps = [event for event in events if event["event"] == "step"]
            wrong = [event["number"] for event in steps if event["digest"] != digests[event["number"]]]
            if wrong:
                self.broken.append(f"rank {rank}: the weights after step {wrong[0]} are not the right ones")
            if [event["event"] for event in events[-1:]] != ["end"]:
                self.broken.append(f"rank {rank} has not ended well")
            self._compare(f"rank {rank}", [(event["descriptors"], event["resident"]) for event in steps])
        by_name: dict[str, list[tuple[int, int]]] = {}
        for sample in self.samples:
            by_name.setdefault(sample.name, []).append((sample.descriptors, sample.resident))
        for name, figures in by_name.items():
            self._compare(name, figures)

    def _compare(self, name: str, figures: Sequence[tuple[int, int]]) -> None:
        """The last quarter of a process's figures must be like the second."""
        quarter = len(figures) // 4
        if quarter == 0:
            return
        for what, index, most in (("descriptors", 0, _MORE_DESCRIPTORS), ("bytes", 1, _MORE_BYTES)):
            before, after = (
                statistics.median(each[index] for each in part)
                for part in (figures[quarter : 2 * quarter], figures[-quarter:])
            )
            if after > before + most:
                self.broken.append(f"{name} had {before:.0f} {what}, and has {after:.0f}")

    def report(self, seconds: float) -> str:
        """What came of it, in some lines."""
        steps = [event for event in self.ranks[0] if event["event"] == "step"] if self.ranks else []
        if len(steps) < 2:
            return "\n".join(["hardly any step was done", *self.broken])
        gaps = [later["at"] - earlier["at"] for earlier, later in pairwise(steps)]
        lines = [
            f"{len(self.struck)} faults in {seconds:.0f} s, {steps[-1]['number']} steps, "
            f"{steps[-1]['changes']} changes of way",
            f"{EACH} steps took {statistics.median(gaps):.2f} s, at most {max(gaps):.1f} s",
            f"loss {steps[0]['loss']:.3f}, then {steps[-1]['loss']:.3f}; weights {steps[-1]['digest'][:8]}",
        ]
        return "\n".join(
            [*lines, *(self.broken or ["as it should be: weights, descriptors, memory and leases"])]
        )


def undisturbed(folder: Path, last: int) -> list[Event]:
    """The events of rank 0 where nothing happens, on a star with fast links."""
    with open_testbed(hosts=RANKS, link=LinkSpec.parse("unshaped"), results_root=folder) as testbed:
        training = Training(testbed)
        training.end(last, last * 0.5 + _END_S)
        return training.steps(0)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.soak", description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("results/soak"))
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--seed", type=int, default=1, help="of the faults")
    arguments = parser.parse_args()
    folder = arguments.results / time.strftime("%Y%m%d-%H%M%S")
    soak = Soak(folder / "logs", arguments.seed)
    with signals_raise():
        soak.run(arguments.seconds)
        last = max((event.get("number", 0) for events in soak.ranks for event in events), default=0)
        if last:
            soak.judge(undisturbed(folder / "logs", last))
    document = {
        "struck": [asdict(each) for each in soak.struck],
        "samples": [asdict(each) for each in soak.samples],
        "ranks": soak.ranks,
        "broken": soak.broken,
    }
    (folder / "soak.json").write_text(json.dumps(document) + "\n")
    print(soak.report(arguments.seconds), f"JSON and logs: {folder}", sep="\n")
    return int(bool(soak.broken))


if __name__ == "__main__":
    sys.exit(main())
