# SPDX-License-Identifier: Apache-2.0
"""The controller's API: generated requests (schemathesis), slow and huge bodies, connections that stay idle."""

import contextlib
import json
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from inagg_contract.documents import DEFAULT_PORT
from inagg_testbed.network.control import (
    CONTROLLER_URL,
    call_in_network_namespace,
    token_path,
)
from inagg_testbed.network.processes import NodeProcess
from inagg_testbed.network.testbed import Testbed
from inagg_testbed.network.topology import CONTROL_ADDRESS
from tests.attack.outcome import Outcome
from tests.attack.ranks import BrokenPromiseError, Ranks, wait_until
from tests.attack.siege import STRANGER, attack_sums, besieged, judge_ranks

# In a virtual environment apart from the project's: there, every test run would load its plug-in for pytest.
SCHEMATHESIS = "schemathesis==4.32.5"
TOOLS = Path("build/attack")
SEED = "14"
SETTINGS = Path(__file__).parents[1] / "schemathesis.toml"
# With the operator's token, other calls may rightly end the job under attack.
HARMLESS = ("--include-method", "GET", "--include-path", "/jobs")


def schemathesis() -> Path:
    """The path of the command, which is installed first if it is missing."""
    command = TOOLS.resolve() / "bin" / "schemathesis"
    if not command.exists():
        subprocess.run([sys.executable, "-m", "venv", TOOLS], check=True)
        pip: list[str | Path] = [TOOLS / "bin" / "pip", "install", "--quiet"]
        subprocess.run([*pip, "--constraint", "constraints.txt", SCHEMATHESIS], check=True)
    return command


def generated(testbed: Testbed, name: str, options: Sequence[str], examples: int) -> int:
    """Send requests generated from the API's own description, from the third host; returns how many.

    Raises BrokenPromiseError if an answer is not as the description says.
    """
    report = testbed.results / f"schemathesis-{name}.json"
    command = [str(schemathesis()), "--config-file", str(SETTINGS), "run", f"{CONTROLLER_URL}/openapi.json"]
    command += ["--no-color", "--seed", SEED, "--no-shrink", "--continue-on-failure"]
    command += ["--max-examples", str(examples), "--request-timeout", "70", "--generation-database", "none"]
    command += ["--report-json-path", str(report), *options]
    process = NodeProcess(
        testbed.run,
        testbed.network.host(STRANGER),
        f"schemathesis {name}",
        command,
        log_path=testbed.results / f"schemathesis-{name}.log",
        environment={"NO_PROXY": "*"},
    )
    try:
        wait_until(lambda: process.poll() is not None, f"the end of schemathesis, {name}", 900)
    finally:
        process.stop()
    found = json.loads(report.read_text())
    if found["failures"]:
        raise BrokenPromiseError(f"the API is not as its description says: see {process.log_path}")
    return int(found["test_cases"]["generated"])


def with_token(testbed: Testbed) -> tuple[str, str]:
    """The option that sends the operator's token."""
    return "--header", f"Authorization: Bearer {token_path(testbed.results).read_text().strip()}"


def everything_of_the_operator(outcome: Outcome, folder: Path, examples: int) -> Outcome:
    """All calls, with all rights, while there are no ranks: the calls may end any job. Ranks that join afterwards sum
    correctly."""
    with besieged(outcome, folder) as testbed:
        controller = testbed.controller
        assert controller is not None
        began = time.monotonic()
        try:
            outcome.amount = f"{generated(testbed, 'all', with_token(testbed), examples):,} requests"
            outcome.seconds = time.monotonic() - began
            controller.clear_loss()
            for job in controller.request("GET", "/jobs")["jobs"]:
                controller.request("DELETE", f"/jobs/{job['id']}")
            ranks = Ranks(testbed, 2)
            ranks.wait_for("joined")
            ranks.go_on()
            ranks.finish()
            ranks.wait_ended(timeout_s=30)
            judge_ranks(ranks, outcome, may_fail=False)
        except BrokenPromiseError as error:
            outcome.broken.append(str(error))
    return outcome


@contextlib.contextmanager
def connections(testbed: Testbed, count: int) -> Iterator[list[socket.socket]]:
    """As many connections from the third host as the controller accepts, up to `count`."""
    found: list[socket.socket] = []

    def connect() -> None:
        for _ in range(count):
            with contextlib.suppress(OSError):
                found.append(socket.create_connection((CONTROL_ADDRESS, DEFAULT_PORT), 5))

    try:
        call_in_network_namespace(testbed.network.host(STRANGER).pid, connect)
        yield found
    finally:
        for one in found:
            one.close()


def closed(links: Sequence[socket.socket]) -> int:
    """How many of the connections the other end has closed."""
    count = 0
    for link in links:
        link.setblocking(False)
        try:
            while link.recv(1 << 16):
                pass
            count += 1
        except BlockingIOError:
            pass
        except OSError:
            count += 1
    return count


def head(length: str, path: str = "/jobs") -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: {CONTROL_ADDRESS}\r\nContent-Type: application/json\r\n{length}\r\n\r\n"
    ).encode()


def run(folder: Path, full: bool) -> Iterator[Outcome]:
    """One attack after the other."""
    schemathesis()  # before ranks sum: it takes time
    examples = 200 if full else 10

    def without_token(testbed: Testbed, _ranks: Ranks) -> str:
        return f"{generated(testbed, 'open', (), examples):,} requests"

    def of_the_operator(testbed: Testbed, _ranks: Ranks) -> str:
        options = (*with_token(testbed), *HARMLESS)
        return f"{generated(testbed, 'operator', options, examples):,} requests"

    def slow_bodies(testbed: Testbed, ranks: Ranks) -> str:
        with connections(testbed, 300) as links:
            for link in links:
                link.sendall(head("Content-Length: 50"))
            began = time.monotonic()
            while time.monotonic() < began + 9:
                for link in links:
                    with contextlib.suppress(OSError):
                        link.sendall(b" ")
                time.sleep(0.5)
            wait_until(lambda: closed(links) == len(links), "slow bodies are refused (deployment.md)", 30)
        return f"{len(links):,} connections, 2 bytes a second"

    def huge_bodies(testbed: Testbed, ranks: Ranks) -> str:
        piece, sent = bytes(1 << 20), 0
        with connections(testbed, 20) as links:
            for number, link in enumerate(links):
                link.settimeout(2)
                with contextlib.suppress(OSError):
                    link.sendall(
                        head("Transfer-Encoding: chunked" if number % 2 else "Content-Length: 400000000")
                    )
                    for _ in range(400):
                        link.sendall(b"100000\r\n" * (number % 2) + piece + b"\r\n" * (number % 2))
                        sent += len(piece)
            wait_until(lambda: closed(links) == len(links), "huge bodies are refused (deployment.md)", 30)
        return f"{len(links)} bodies of 400 MB, {sent >> 20} MB taken"

    def idle(testbed: Testbed, ranks: Ranks) -> str:
        count = 3000 if full else 1500
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2 * count), hard))
        with connections(testbed, count) as links:
            at_once = closed(links)
            ranks.go_on()
            assert testbed.controller is not None
            testbed.controller.health()
            wait_until(lambda: closed(links) == len(links), "idle connections are closed (deployment.md)", 60)
        return f"{len(links):,} connections, {at_once:,} refused at once"

    yield attack_sums(Outcome("api: generated, no token"), folder, without_token)
    yield attack_sums(Outcome("api: generated, operator"), folder, of_the_operator)
    yield everything_of_the_operator(Outcome("api: generated, operator, all calls"), folder, examples)
    yield attack_sums(Outcome("api: slow bodies"), folder, slow_bodies)
    yield attack_sums(Outcome("api: huge bodies"), folder, huge_bodies)
    yield attack_sums(Outcome("api: idle connections"), folder, idle)
