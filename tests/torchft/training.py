# SPDX-License-Identifier: Apache-2.0
"""Runs examples/torchft_digits.py: a lighthouse, a controller without a switch, and replicas that are killed."""

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import IO

from tests import ROOT
from tests.controller.launching import CommandLine, Launcher, read_line
from tests.free_ports import free_port
from tests.trainers.installation import PYTHON
from tests.waiting import wait_until

EXAMPLE = ROOT / "examples" / "torchft_digits.py"
REPLICAS = 3
PATIENCE_S = 120.0  # to import torch on a busy machine, several times at once
# A replica that is killed counts as alive for so long. torchft's default, 5 s, is longer than a recovery may take.
HEARTBEAT_TIMEOUT_MS = 1000
_LIGHTHOUSE = "torchft_lighthouse"
_STEP = re.compile(r"step (\d+): (?:loss ([\d.]+), (\d+) replicas|(not committed, again))")


def interpreter() -> Path | None:
    """A Python that has torchft: of this environment or of that of `make torchft`; None without one."""
    pythons = Path(sys.executable), PYTHON
    return next((python for python in pythons if python.with_name(_LIGHTHOUSE).is_file()), None)


@dataclass(frozen=True)
class Step:
    """A line that a replica has printed. at: when. loss: of the test digits; None: the step was not committed."""

    at: float
    number: int
    loss: float | None
    replicas: int


@dataclass
class Replica:
    """A process of the example. steps: what it has printed so far."""

    process: "subprocess.Popen[str]"
    log: IO[str]
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            at = time.monotonic()
            self.log.write(line)
            self.log.flush()
            if found := _STEP.match(line):
                number, loss, replicas, failed = found.groups()
                self.steps.append(Step(at, int(number), None if failed else float(loss), int(replicas or 0)))

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.log.close()

    def committed(self, since: float, replicas: int) -> list[Step]:
        """The steps since that time that were committed with so many replicas."""
        return [
            step
            for step in list(self.steps)
            if step.at > since and step.loss is not None and step.replicas == replicas
        ]


@dataclass(frozen=True)
class Recovery:
    """What a kill has cost.

    seconds: from the kill until the last of the others has committed a step without the killed replica.
    lost: the steps that were not committed, on the replica that has most.
    pause: the longest time without a committed step while the replacement joined, in seconds.
    """

    seconds: float
    lost: int
    pause: float


class Training:
    """Replicas that train. `replicas`: those that run, by number."""

    def __init__(self, python: Path, folder: Path, backend: str, environment: dict[str, str]) -> None:
        self._python, self._folder, self._backend = python, folder, backend
        self._environment = environment
        self.replicas: dict[int, Replica] = {}
        self._started = 0

    def start(self, number: int) -> Replica:
        self._started += 1
        log = self._folder / f"{self._backend}-{self._started}-replica{number}.log"
        command = [str(self._python), str(EXAMPLE), "--replica", str(number), "--backend", self._backend]
        with log.with_suffix(".err").open("w") as errors:
            process = subprocess.Popen(
                [*command, "--steps", "1000000"],
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self.replicas[number] = Replica(process, log.open("w"))
        return self.replicas[number]

    def wait_for_all(self, since: float, steps: int = 3) -> None:
        """Wait until every replica has committed so many steps with all replicas since that time."""
        self._wait(list(self.replicas.values()), since, REPLICAS, steps)

    def _wait(self, replicas: Sequence[Replica], since: float, size: int, steps: int) -> None:
        def done() -> bool:
            for replica in replicas:
                assert replica.process.poll() is None, f"a replica has ended: {replica.log.name}"
            return all(len(replica.committed(since, size)) >= steps for replica in replicas)

        wait_until(done, f"{steps} steps with {size} replicas", timeout_s=PATIENCE_S)

    def kill(self, number: int) -> Recovery:
        """Kill a replica, start another one in its place, and wait until all train again."""
        self.replicas.pop(number).kill()
        killed = time.monotonic()
        others = list(self.replicas.values())
        self._wait(others, killed, REPLICAS - 1, 1)
        seconds = max(other.committed(killed, REPLICAS - 1)[0].at for other in others) - killed
        lost = max(sum(step.loss is None and step.at > killed for step in other.steps) for other in others)
        recovered = killed + seconds
        self.start(number)
        self.wait_for_all(recovered)
        return Recovery(seconds, lost, max(_longest_pause(other.steps, recovered) for other in others))

    def loss(self) -> float:
        """The newest loss of a replica, of the test digits."""
        steps = [step for replica in self.replicas.values() for step in list(replica.steps)]
        return max((step.at, step.loss) for step in steps if step.loss is not None)[1]

    def close(self) -> None:
        for replica in self.replicas.values():
            replica.kill()


def _longest_pause(steps: Sequence[Step], since: float) -> float:
    times = [step.at for step in steps if step.at >= since and step.loss is not None]
    return max(later - earlier for earlier, later in pairwise(times))


@contextmanager
def training(python: Path, folder: Path, backend: str) -> Iterator[Training]:
    """Replicas of the example that train over inagg or gloo. python: has torchft. Their logs go to the folder."""
    lighthouse, controller = free_port(), free_port()
    address = f"127.0.0.1:{controller}"
    own = {
        "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{lighthouse}",
        "INAGG_CONTROLLER": f"http://{address}",
        "INAGG_AGGREGATION": "server",
        "OMP_NUM_THREADS": "1",
    }
    with ExitStack() as stack:
        options = {"no-switch": True, "listen": address, "token-file": folder / f"{backend}.token"}
        launch = Launcher(CommandLine(options))
        stack.callback(launch.close)
        assert read_line(launch()) == "ready"
        command = [str(python.with_name(_LIGHTHOUSE)), "--min_replicas", "1"]
        command += ["--bind", f"127.0.0.1:{lighthouse}", "--heartbeat_timeout_ms", str(HEARTBEAT_TIMEOUT_MS)]
        with (folder / f"{backend}-lighthouse.log").open("w") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        stack.callback(process.wait)
        stack.callback(process.kill)
        made = Training(python, folder, backend, {**os.environ, **own})
        stack.callback(made.close)
        began = time.monotonic()
        for number in range(REPLICAS):
            made.start(number)
        made.wait_for_all(began)
        yield made
