# SPDX-License-Identifier: Apache-2.0
"""A host outside a job guesses: 100,000 of the smallest forged packets a second, and 300 requests a second to the
controller, while four ranks sum. The job's speed is compared with that of the same job in the moments without both."""

import itertools
import random
import secrets
import socket
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from inagg_contract.documents import DEFAULT_PORT
from inagg_testbed.network.control import call_in_network_namespace
from inagg_testbed.network.testbed import Testbed
from inagg_testbed.network.topology import CONTROL_ADDRESS, host_address, host_mac
from tests.attack.facts import (
    AGGREGATOR_IP,
    AGGREGATOR_MAC,
    EXPONENT,
    EXPONENT_RESULT,
    INAGG_PORT,
    JobFacts,
    payload,
)
from tests.attack.frames import BATCH, Batch, packet_socket
from tests.attack.outcome import Outcome
from tests.attack.paced import Sent, sending
from tests.attack.ranks import Ranks
from tests.attack.siege import attack_sums

RANKS, OUTSIDER = 4, 5
LINK = "100mbit"
PACKETS_S, REQUESTS_S = 100_000, 300
LEAST_RATIO = 0.9
WINDOW_S, SETTLE_S = 4.0, 0.5
_BATCHES = 8
_SOL_PACKET, _PACKET_QDISC_BYPASS, _SO_SNDBUFFORCE = 263, 20, 32  # packet(7), socket(7)
_CLIENTS = 4  # one alone would wait for its answers
_SEND_BUFFER = 8 << 20
_JOB = 1  # numbers begin there
_EPHEMERAL = (32768, 60999)  # ip(7), ip_local_port_range


def forged(draws: random.Random) -> bytes:
    """The smallest packet in the name of a rank or of the aggregator, with a guessed epoch, chunk and port."""
    from scapy.layers.inet import IP, UDP
    from scapy.layers.l2 import Ether

    rank, port = draws.randrange(RANKS), draws.randint(*_EPHEMERAL)
    job = JobFacts(_JOB, draws.getrandbits(32), draws.getrandbits(32), port)
    mac, ip = host_mac(rank + 1), host_address(rank + 1)
    to_switch = Ether(src=mac, dst=AGGREGATOR_MAC) / IP(src=ip, dst=AGGREGATOR_IP)
    own = Ether(src=host_mac(OUTSIDER), dst=AGGREGATOR_MAC) / IP(
        src=host_address(OUTSIDER), dst=AGGREGATOR_IP
    )
    to_rank = Ether(src=AGGREGATOR_MAC, dst=mac) / IP(src=AGGREGATOR_IP, dst=ip)
    to_group = Ether(src=AGGREGATOR_MAC, dst="01:00:5e:40:00:01") / IP(src=AGGREGATOR_IP, dst="239.192.0.1")
    up, down = payload(EXPONENT, job, rank=rank), payload(EXPONENT_RESULT, job, rank=rank)
    return bytes(
        draws.choice(
            (
                to_switch / UDP(sport=port, dport=INAGG_PORT) / up,
                own / UDP(sport=port, dport=INAGG_PORT) / up,
                own / UDP(sport=INAGG_PORT, dport=INAGG_PORT) / down,
                to_rank / UDP(sport=INAGG_PORT, dport=port) / down,
                to_group / UDP(sport=INAGG_PORT, dport=INAGG_PORT) / down,
            )
        )
    )


def requests() -> list[bytes]:
    """Requests of a client that has no secret."""
    job = b'{"workers": 2, "slots": 64, "name": "outsider"}'
    wrong = f"Authorization: Bearer {secrets.token_urlsafe(24)}".encode()
    lines = (
        (b"POST /jobs", b"", job),
        (b"GET /health", b"", b""),
        (b"GET /jobs", wrong, b""),
        (b"GET /jobs/1", wrong, b""),
        (b"DELETE /jobs/1", wrong, b""),
        (b"POST /jobs/1/workers/0/heartbeat", wrong, b'{"begun": 0}'),
    )
    return [
        b"%s HTTP/1.1\r\nHost: controller\r\n%sContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
        % (line, secret + b"\r\n" if secret else b"", len(body), body)
        for line, secret, body in lines
    ]


class Client:
    """One connection from the outsider to the controller, which is opened again when it ends."""

    def __init__(self, testbed: Testbed) -> None:
        self._pid = testbed.network.host(OUTSIDER).pid
        self._requests = itertools.cycle(requests())
        self._socket: socket.socket | None = None
        self.answers: Counter[str] = Counter()

    def ask(self) -> int:
        """One request and its answer."""
        if self._socket is None:
            self._socket = call_in_network_namespace(
                self._pid, lambda: socket.create_connection((CONTROL_ADDRESS, DEFAULT_PORT), 10)
            )
        self._socket.sendall(next(self._requests))
        answer = b""
        while not _is_whole(answer):
            more = self._socket.recv(1 << 16)
            if not more:
                self.close()
                break
            answer += more
        self.answers[answer[9:12].decode() or "no answer"] += 1
        return 1

    def close(self) -> None:
        """End the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _is_whole(answer: bytes) -> bool:
    head, end, body = answer.partition(b"\r\n\r\n")
    if not end:
        return False
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return len(body) >= int(line.split(b":")[1])
    return True


class Outsider:
    """What a host outside the job sends."""

    def __init__(self, testbed: Testbed) -> None:
        draws = random.Random(20)
        self._batches = itertools.cycle(
            [Batch([forged(draws) for _ in range(BATCH)]) for _ in range(_BATCHES)]
        )
        self._testbed = testbed
        self._clients = [Client(testbed) for _ in range(_CLIENTS)]
        self.packets, self.requests = Sent(), [Sent() for _ in self._clients]

    @contextmanager
    def flooding(self) -> Iterator[None]:
        """Send during the block."""
        with ExitStack() as stack:
            link = stack.enter_context(packet_socket(self._testbed, OUTSIDER))
            # The rate is half of the link's, so the token bucket would only cost processor time.
            link.setsockopt(_SOL_PACKET, _PACKET_QDISC_BYPASS, 1)
            link.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _SEND_BUFFER)
            packets = stack.enter_context(sending(lambda: next(self._batches).send(link), PACKETS_S))
            asked = []
            for client in self._clients:
                stack.callback(client.close)
                asked.append(stack.enter_context(sending(client.ask, REQUESTS_S / _CLIENTS)))
            yield
        self.packets.add(packets)
        for total, one in zip(self.requests, asked, strict=True):
            total.add(one)

    @property
    def answers(self) -> Counter[str]:
        """The statuses of the controller's answers."""
        return sum((client.answers for client in self._clients), Counter[str]())


def speed(ranks: Ranks) -> float:
    """Sums a second of rank 0, over WINDOW_S from soon on."""
    time.sleep(SETTLE_S)
    began, before = ranks.at(0, "sums"), ranks.sums(0).checked
    time.sleep(WINDOW_S)
    ended, after = ranks.at(0, "sums"), ranks.sums(0).checked
    return (after - before) / (ended - began)


def compared(testbed: Testbed, ranks: Ranks, outcome: Outcome, pairs: int) -> str:
    """Measure the job's speed with and without the flood in turn."""
    outsider = Outsider(testbed)
    calm, ratios = [], []
    for pair in range(pairs):
        rates = {}
        for flooded in (False, True) if pair % 2 == 0 else (True, False):
            with outsider.flooding() if flooded else ExitStack():
                rates[flooded] = speed(ranks)
        calm.append(rates[False])
        ratios.append(rates[True] / rates[False])
    ratio = statistics.median(ratios)
    if ratio < LEAST_RATIO:
        outcome.broken.append(f"the job had {ratio:.2f} of its speed (protocol.md, 9)")
    answers = ", ".join(f"{count} {status}" for status, count in sorted(outsider.answers.items()))
    requests_s = sum(sent.rate for sent in outsider.requests)
    return (
        f"speed x {ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f}, {pairs} pairs) of "
        f"{statistics.median(calm):.0f} sums/s; {outsider.packets.rate:,.0f} packets/s, "
        f"{requests_s:.0f} requests/s ({answers})"
    )


def run(folder: Path, full: bool) -> Iterator[Outcome]:
    """15 pairs of moments with and without the flood, or 3."""
    outcome = Outcome("outsider")
    pairs = 15 if full else 3
    yield attack_sums(
        outcome,
        folder,
        lambda testbed, ranks: compared(testbed, ranks, outcome, pairs),
        link=LINK,
        hosts=RANKS + 1,
        ranks=RANKS,
    )
