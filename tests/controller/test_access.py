# SPDX-License-Identifier: Apache-2.0
"""Access control: requests of hosts without a secret, over HTTP to a controller process."""

import contextlib
import json
import resource
import select
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from inagg.errors import ControllerForbiddenError
from inagg.membership.control import ControlClient
from inagg.membership.presence import TcpPresence
from inagg_controller.cli import app
from tests import forks
from tests.controller.launching import CommandLine, Launcher, read_line
from tests.controller.serving import OPERATORS_TOKEN
from tests.waiting import wait_until

WORKER = {"rank": 0, "ip": "10.0.0.1", "mac": "02:00:00:00:00:01", "udp_port": 4000}


class Victim:
    """A controller with job 1, of two ranks of which one has registered."""

    def __init__(self, process: forks.Process, port: int) -> None:
        self.process = process
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.token = OPERATORS_TOKEN
        self.stranger = httpx.Client(base_url=self.url, trust_env=False, timeout=10)
        job = self.stranger.post("/jobs", json={"workers": 2, "slots": 4}).json()
        self.secret = job["secret"]
        assert self.as_(self.secret, "POST", "/jobs/1/workers", json=WORKER).status_code == 200

    def as_(self, secret: str | None, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a request with this secret; None: without one."""
        headers = {} if secret is None else {b"Authorization": f"Bearer {secret}".encode()}
        return self.stranger.request(method, path, headers=headers, **options)

    def job(self) -> dict[str, Any]:
        job: dict[str, Any] = self.as_(self.secret, "GET", "/jobs/1").json()
        return job

    def health(self) -> int:
        """The status of GET /health on a connection of its own."""
        return httpx.get(f"{self.url}/health", trust_env=False, timeout=10).status_code

    def memory(self) -> int:
        """Peak resident memory, in bytes."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))

    def log(self) -> str:
        self.process.terminate()
        return self.process.communicate(timeout=20)[1]

    def connect(self, host: str = "127.0.0.1") -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), 10, source_address=(host, 0))


StartVictim = Callable[..., Victim]  # with options of the controller


@pytest.fixture
def victim(launch: Launcher, free_port: int) -> Iterator[StartVictim]:
    started: list[Victim] = []

    def start(**options: object) -> Victim:
        process = launch(**options)
        assert read_line(process) == "ready"
        started.append(Victim(process, free_port))
        return started[-1]

    yield start
    for one in started:
        one.stranger.close()


ABOUT_A_JOB = [
    ("GET", "/jobs/1", None),
    ("DELETE", "/jobs/1", None),
    ("POST", "/jobs/1/unicast", None),
    ("POST", "/jobs/1/workers", WORKER | {"rank": 1, "ip": "10.0.0.2", "port": 2}),
    ("POST", "/jobs/1/workers/0/heartbeat", {}),
    ("POST", "/jobs/1/workers/0/presence", None),
    ("POST", "/jobs/1/workers/0/serving", None),
    ("DELETE", "/jobs/1/workers/0", None),
    ("DELETE", "/jobs/1/workers/0?error=forged", None),
]
OPERATORS = [
    ("GET", "/jobs", None),
    ("GET", "/counters", None),
    ("GET", "/loss", None),
    ("PUT", "/loss", {"port": 1, "direction": "ingress", "probability": 1.0}),
    ("DELETE", "/loss", None),
    ("POST", "/servers", {"name": "a", "ip": "10.0.1.1", "udp_port": 18754, "memory": 1000}),
    ("POST", "/servers/a/heartbeat", {"instance": 1}),
    ("DELETE", "/servers/a?instance=1", None),
]


def test_only_who_has_a_jobs_secret_or_the_operators_token_may_deal_with_it(victim: StartVictim) -> None:
    controller = victim()
    other = controller.stranger.post("/jobs", json={"workers": 1, "slots": 4}).json()["secret"]
    before = controller.job()
    for method, path, body in ABOUT_A_JOB:
        answer = controller.as_(None, method, path, json=body)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert "needs the job's secret, which the answer to POST /jobs contains" in answer.json()["detail"]
        for wrong in (other, "wrong", f"{controller.secret}x", controller.secret[:-1], "é"):
            answer = controller.as_(wrong, method, path, json=body)
            assert (answer.status_code, answer.json()["title"]) == (403, "Wrong secret")
            assert "this is not the secret of job 1" in answer.json()["detail"]
    assert controller.job() == before
    assert controller.as_(controller.token, "DELETE", "/jobs/1").json()["state"] == "failed"


def test_only_the_operator_may_see_all_jobs_and_counters_inject_loss_and_act_for_servers(
    victim: StartVictim,
) -> None:
    controller = victim()
    for method, path, body in OPERATORS:
        answer = controller.as_(None, method, path, json=body)
        assert (answer.status_code, answer.json()["title"]) == (401, "Secret missing")
        assert (
            "needs the operator's token, which is in the controller's --token-file" in answer.json()["detail"]
        )
        assert controller.as_(controller.secret, method, path, json=body).status_code == 403
    assert controller.as_(controller.token, "GET", "/loss").json() == {"loss": []}
    for method, path, body in OPERATORS:
        assert controller.as_(controller.token, method, path, json=body).is_success


def test_no_spelling_of_a_jobs_number_gets_around_its_secret(victim: StartVictim) -> None:
    controller = victim()
    for number in ("1.0", "+1", "%201", "1_0", "-1", "0x1", "%D9%A1", "1" * 5000, "01.0", "1%00"):
        assert controller.as_("wrong", "DELETE", f"/jobs/{number}").status_code == 404
    for number in ("1", "01", "00001"):
        assert controller.as_("wrong", "DELETE", f"/jobs/{number}").status_code == 403
    assert controller.job()["state"] == "joining"


def test_one_host_cannot_have_all_slots(victim: StartVictim) -> None:
    controller = victim()
    greedy = httpx.HTTPTransport(local_address="127.0.0.2")
    with httpx.Client(base_url=controller.url, transport=greedy) as host:
        while (answer := host.post("/jobs", json={"workers": 1, "slots": 2})).is_success:
            pass
    assert answer.status_code == 503
    assert (
        "the jobs of 127.0.0.2 have all slots of switch s1 that one host may have" in answer.json()["detail"]
    )
    assert (
        controller.stranger.get("/health").json()["free_slot_versions"] == 48 // 4 - 8
    )  # 16 are shared, job 1 has 8
    assert controller.stranger.post("/jobs", json={"workers": 1, "slots": 2}).status_code == 201


def forwarded_jobs(controller: Victim, forwarded: Callable[[int], str]) -> httpx.Response:
    """Create jobs, the n-th with this X-Forwarded-For, until one is refused; 20 at most."""
    for number in range(20):
        headers = {"X-Forwarded-For": forwarded(number)}
        answer = controller.stranger.post("/jobs", json={"workers": 1, "slots": 2}, headers=headers)
        if not answer.is_success:
            break
    return answer


def test_no_header_gets_around_the_limits_for_one_host(victim: StartVictim) -> None:
    answer = forwarded_jobs(victim(), lambda number: f"198.51.100.{number}")
    assert answer.status_code == 503
    assert "the jobs of 127.0.0.1 have all slots of switch s1 that one host may have" in answer.text


def test_behind_a_proxy_the_limits_hold_for_the_host_that_the_proxy_names(victim: StartVictim) -> None:
    controller = victim(proxy=["192.0.2.0/24", "127.0.0.1"])
    answer = forwarded_jobs(controller, lambda number: f"198.51.100.{number}, 198.51.100.77")
    assert answer.status_code == 503
    assert "the jobs of 198.51.100.77 have all slots" in answer.text


def test_health_is_for_everybody(victim: StartVictim) -> None:
    assert victim().stranger.get("/health").json()["switch"] == "connected"


def test_what_clients_send_makes_no_line_of_the_log(victim: StartVictim) -> None:
    controller = victim()
    forged = (
        "bad\n2026-01-01 00:00:00,000 WARNING inagg_controller.service: job 2 failed: forged\x1b[2J\u2028x"
    )
    params = {"error": forged}
    assert controller.as_(controller.secret, "DELETE", "/jobs/1/workers/0", params=params).status_code == 200
    log = controller.log()
    assert "left: bad\\n2026-01-01" in log
    assert not any(line.startswith("2026-01-01") for line in log.splitlines())
    assert not {"\x1b", "\u2028"} & set(log)


def send_for_ever(connection: socket.socket, piece: bytes) -> None:
    with contextlib.suppress(OSError):
        for _ in range(6400):
            connection.sendall(piece)


PATHS = ["/jobs", "/loss", "/jobs/1/workers/0/heartbeat", "/jobs/1/workers"]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_of_400_mib_is_refused_and_costs_no_memory(victim: StartVictim, chunked: bool) -> None:
    controller = victim()
    before = controller.memory()
    for path in PATHS:
        send_400_mib(controller, path, chunked)
    assert controller.memory() - before < 16 << 20
    assert controller.job()["state"] == "joining"


def send_400_mib(controller: Victim, path: str, chunked: bool) -> None:
    method = "PUT" if path == "/loss" else "POST"
    secret = controller.token if path == "/loss" else controller.secret
    framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {400 << 20}"
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret}\r\n{framing}\r\n\r\n"
    piece = b"10000\r\n" + bytes(1 << 16) + b"\r\n" if chunked else bytes(1 << 16)
    with controller.connect() as connection:
        connection.sendall(head.encode())
        sender = threading.Thread(target=send_for_ever, args=(connection, piece))
        sender.start()
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while part := connection.recv(1 << 16):
                answer += part
        sender.join()
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answer.lower()
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["detail"].startswith("the body is larger than ")


def test_the_bodies_that_one_host_sends_at_a_time_have_a_limit(victim: StartVictim) -> None:
    controller = victim()
    head = "POST /jobs/1/workers/0/heartbeat HTTP/1.1\r\nHost: x\r\n"
    head += f"Authorization: Bearer {controller.secret}\r\nContent-Length: {1 << 20}\r\n\r\n"
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(controller.connect()) for _ in range(33)]
        for connection in slow:
            connection.sendall(head.encode() + bytes((1 << 20) - 1))
        (refused, *_), _, _ = select.select(slow, [], [], 10)
        answer = b""
        while b"}" not in answer:
            answer += refused.recv(1 << 16)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert (
            b"the bodies of requests and answers of 127.0.0.1 under way have 33554432 bytes, the limit"
            in answer
        )
        other = httpx.HTTPTransport(local_address="127.0.0.2")
        with httpx.Client(base_url=controller.url, transport=other) as host:
            assert host.post("/jobs", json={"workers": 1, "slots": 2}).status_code == 201
    wait_until(
        lambda: controller.stranger.post("/jobs", json={"workers": 1, "slots": 2}).status_code == 201,
        "room for bodies",
    )


def different_calls(controller: Victim, ranks: int = 64) -> dict[str, Any]:
    """A job that has failed because its ranks call different collectives with long texts."""
    new = {"workers": ranks, "slots": 256, "aggregation": "server"}
    job: dict[str, Any] = controller.stranger.post("/jobs", json=new).json()

    def tell(path: str, document: object = None) -> None:
        answer = controller.as_(job["secret"], "POST", f"/jobs/{job['id']}/workers{path}", json=document)
        assert answer.status_code == 200, answer.text

    for rank in range(ranks):
        ports = {"udp_port": 2000 + 2 * rank, "server_udp_port": 2001 + 2 * rank}
        tell("", {"rank": rank, "ip": "10.0.0.1", **ports})
    for rank in range(ranks):
        tell(f"/{rank}/serving")
    for rank in range(ranks):
        tell(f"/{rank}/heartbeat", {"begun": 1})
    for rank in range(ranks):
        call = {"digest": rank, "text": "\1" * 1000 if rank else "barrier()"}
        tell(f"/{rank}/heartbeat", {"begun": 1, "asked": {"first": 1, "last": 1}, "calls": [call]})
    return job


def test_answers_that_one_host_does_not_read_have_a_limit(victim: StartVictim) -> None:
    controller = victim(idle_timeout_s=2)
    job = different_calls(controller)
    beat = {"job": job["id"], "rank": 0, "secret": job["secret"], "beat": {}}
    body = json.dumps({"beats": [beat] * 256}).encode()
    head = "POST /heartbeats HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    files = Path(f"/proc/{controller.process.pid}/fd")
    controller.stranger.close()
    wait_until(lambda: controller.health() == 200, "an answer")
    before, at_rest = controller.memory(), len(list(files.iterdir()))
    with contextlib.ExitStack() as stack:
        deaf = [stack.enter_context(controller.connect()) for _ in range(40)]
        for connection in deaf:
            connection.sendall(head.encode() + body)
        for connection in deaf:
            select.select([connection], [], [], 60)
        first = [connection.recv(12, socket.MSG_PEEK) for connection in deaf]
        assert set(first) == {b"HTTP/1.1 200", b"HTTP/1.1 503"}
        assert controller.memory() - before < 160 << 20
        wait_until(lambda: len(list(files.iterdir())) <= at_rest, "the connections to end", 30)
    assert controller.health() == 200


def test_a_large_answer_arrives_whole(victim: StartVictim) -> None:
    controller = victim()
    job = different_calls(controller)
    beat = {"job": job["id"], "rank": 0, "secret": job["secret"], "beat": {}}
    answers = controller.stranger.post("/heartbeats", json={"beats": [beat] * 100}).json()["answers"]
    assert len(answers) == 100
    assert {json.dumps(answer) for answer in answers} == {json.dumps(answers[0])}
    assert answers[0]["heartbeat"]["mismatch"] == {
        "number": 1,
        "calls": [
            {"text": "barrier()", "ranks": [0]},
            {"text": "\1" * 1000, "ranks": list(range(1, 64))},
        ],
    }


@pytest.mark.parametrize(
    ("document", "detail"),
    [
        ({"beats": [{}] * 256}, "body.beats.0.job: Field required; body.beats.0.rank: Field required; "),
        ({"beats": [{"beat": {"calls": [0] * 4096}}] * 8}, "body.beats.0.job: Field required; "),
        ({f"f{number}": 0 for number in range(5000)}, "body: Value error, 5000 fields"),
        (
            {f"f{number}": 0 for number in range(30)},
            "body.beats: Field required; body.f0: Extra inputs are not permitted; ",
        ),
    ],
)
def test_an_error_names_few_of_many_faults(victim: StartVictim, document: object, detail: str) -> None:
    answer = victim().stranger.post("/heartbeats", json=document)
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith(detail)
    assert len(answer.content) < 1000


def test_a_request_without_the_secret_does_not_get_its_body_read(victim: StartVictim) -> None:
    controller = victim()
    with controller.connect() as connection:
        head = f"POST /jobs/1/workers HTTP/1.1\r\nHost: x\r\nContent-Length: {1 << 20}\r\n\r\n"
        connection.sendall(head.encode())
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 401 ")


def test_a_client_that_goes_before_its_body_has_come_logs_nothing(victim: StartVictim) -> None:
    controller = victim()
    with controller.connect() as connection:
        head = "POST /jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n"
        connection.sendall(head.encode())
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 100 ")  # it waits for the body
    assert controller.job()["state"] == "joining"
    assert "Traceback" not in controller.log()


def test_an_upgrade_that_is_asked_for_is_ignored_and_logs_nothing(victim: StartVictim) -> None:
    controller = victim()
    with controller.connect() as connection:
        head = "GET /health HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
        connection.sendall(head.encode())
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
    assert "pgrade" not in (log := controller.log())
    assert "install" not in log


def test_idle_connections_of_one_host_leave_room_for_others_and_are_ended(victim: StartVictim) -> None:
    controller = victim(connections_per_host=100, idle_timeout_s=2)
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(controller.connect("127.0.0.2")) for _ in range(1000)]
        for connection in idle[:50]:
            connection.sendall(b"GET /hea")
        transport = httpx.HTTPTransport(local_address="127.0.0.3")
        with httpx.Client(base_url=controller.url, transport=transport) as other:
            assert other.get("/health").status_code == 200
        # The last connections were refused with a reason; the first ones stay open until the request timeout.
        assert b" 503 " in idle[-1].recv(1 << 16)
        assert {connection.recv(1) for connection in idle[:100] if not reset(connection)} <= {b""}
        transport = httpx.HTTPTransport(local_address="127.0.0.2")
        with httpx.Client(base_url=controller.url, transport=transport) as same:
            assert same.get("/health").status_code == 200
    assert controller.log().count("refusing connections from 127.0.0.2") == 1


def test_what_is_not_http_gets_a_problem_document_and_one_line_in_the_log(victim: StartVictim) -> None:
    controller = victim()
    for sent in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"hello\r\n\r\n", b"GET / HTTP/9\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", controller.port), timeout=10) as connection:
            connection.sendall(sent)
            answer = b"".join(iter(lambda c=connection: c.recv(4096), b""))  # type: ignore[misc]
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n"), answer
        assert b"Content-Type: application/problem+json" in head
        assert json.loads(body)["detail"] == (
            "this is not a request of HTTP/1.1; an inagg-controller speaks HTTPS if it has --tls-cert"
        )
    counted = controller.as_(controller.token, "GET", "/metrics").text
    assert 'inagg_api_refusals_total{status="400"} 3' in counted
    log = controller.log()
    assert log.count("that is not a request of HTTP/1.1") == 1
    assert "Invalid HTTP request" not in log


def test_a_path_with_a_slash_too_many_leads_nowhere_else(victim: StartVictim) -> None:
    controller = victim()
    answer = controller.stranger.get("/jobs/", headers={"Host": "elsewhere.example"})
    assert answer.status_code == 404
    assert answer.json()["type"] == "urn:inagg:not-found"
    assert "location" not in answer.headers


def test_the_controller_raises_its_limit_of_open_files(victim: StartVictim) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    try:
        controller = victim()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    limits = Path(f"/proc/{controller.process.pid}/limits").read_text()
    assert int(limits.partition("Max open files")[2].split()[0]) == min(hard, (1 << 14) + 64)


def reset(connection: socket.socket) -> bool:
    """Wait until the connection ends. Returns whether it was reset, not closed."""
    try:
        connection.recv(1, socket.MSG_PEEK)
    except ConnectionResetError:
        return True
    return False


def test_a_rank_that_lives_may_be_silent_for_longer_than_a_connection_may_be_idle(
    victim: StartVictim,
) -> None:
    controller = victim(idle_timeout_s=1, heartbeat_timeout_s=30)
    with ControlClient(controller.url) as client:
        client.learn_secret(1, controller.secret)
        presence = client.attend(1, 0, 20.0)
        assert isinstance(presence, TcpPresence)
        connection = presence._connection
        connection.settimeout(3)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        presence.close()
    assert "Traceback" not in controller.log()


def test_the_operators_token_is_made_for_its_owner_alone_and_kept(
    launch: Launcher, tmp_path: Path, free_port: int
) -> None:
    path = tmp_path / "new" / "controller.token"
    tokens = []
    for _ in range(2):
        process = launch(token_file=path, state="none")
        assert read_line(process) == "ready"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert list(path.parent.iterdir()) == [path]
        tokens.append(path.read_text().strip())
        headers = {"Authorization": f"Bearer {tokens[-1]}"}
        answer = httpx.get(f"http://127.0.0.1:{free_port}/jobs", headers=headers, trust_env=False)
        assert answer.json() == {"jobs": []}
        process.terminate()
        _, log = process.communicate(timeout=20)
        assert tokens[-1] not in log
    assert tokens[0] == tokens[1]
    assert len(tokens[0]) >= 40


@pytest.mark.parametrize(
    ("content", "mode", "message"),
    [
        ("a-token-of-some-length", 0o644, "others can read it"),
        ("short", 0o600, "not a token of at least 16 letters"),
        ("", 0o600, "not a token"),
        ("one of two lines\nlonger than that", 0o600, "not a token"),
    ],
)
def test_a_token_that_would_protect_nothing_is_refused(
    command_line: CommandLine, token_file: Path, content: str, mode: int, message: str
) -> None:
    token_file.write_text(content)
    token_file.chmod(mode)
    result = CliRunner().invoke(app, command_line())
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"--token-file {token_file}: {message}" in result.stderr


def test_a_rank_with_a_wrong_secret_raises_an_error_of_its_own_kind(victim: StartVictim) -> None:
    controller = victim()
    with ControlClient(controller.url) as client:
        with pytest.raises(ControllerForbiddenError, match="needs the job's secret") as missing:
            client.status(1)
        client.learn_secret(1, "wrong")
        with pytest.raises(ControllerForbiddenError, match="this is not the secret of job 1") as wrong:
            client.status(1)
    assert (missing.value.status, wrong.value.status) == (401, 403)
