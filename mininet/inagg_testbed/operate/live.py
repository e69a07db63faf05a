# SPDX-License-Identifier: Apache-2.0
"""What a training does at the moment, for a terminal: jobs, ranks, who is late; from GET /overview, once a second."""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from inagg_contract.documents import ENDED_STATES, Overview, OverviewJob, OverviewRank
from inagg_contract.ranks import name_job, name_ranks
from inagg_controller.logs import one_line
from inagg_testbed.errors import LauncherError
from inagg_testbed.network.control import ControllerClient
from inagg_testbed.network.gateway import Gateway
from inagg_testbed.terminal import plain_table

_log = logging.getLogger(__name__)

_INTERVAL_S = 1.0
_END_S = 0.5  # for a request under way
_KEPT = 5  # overviews; rates are measured over them
HEADER = ("rank", "host", "state", "sums/s", "late ms", "RTT ms", "window", "sent again", "Mbit/s")


class RankRates(NamedTuple):
    """Figures of a rank between two overviews; None: not known, as when the rank has begun to count anew.

    sums: a second. late_s: how much less it waits for others in a sum than the rank that waits most. resent: the share
    of packets that were sent again. goodput: payload of results, in bit/s.
    """

    sums: float | None = None
    late_s: float | None = None
    resent: float | None = None
    goodput: float | None = None


def rank_rates(before: Overview, after: Overview, job: OverviewJob) -> Mapping[int, RankRates]:
    """The figures of the ranks of a job of `after`, by rank."""
    earlier = next((each for each in before.jobs if each.id == job.id), None)
    seconds = after.at - before.at
    if earlier is None or seconds <= 0 or len(earlier.ranks) != len(job.ranks):
        return {each.rank: RankRates() for each in job.ranks}
    waits = {
        now.rank: {
            "sums": now.waits.sums - then.waits.sums,
            "waited_s": now.waits.waited_s - then.waits.waited_s,
        }
        for then, now in zip(earlier.ranks, job.ranks, strict=True)
        if then.waits is not None and now.waits is not None
        if now.waits.sums >= then.waits.sums and now.waits.waited_s >= then.waits.waited_s
    }
    means = {rank: each["waited_s"] / each["sums"] for rank, each in waits.items() if each["sums"] > 0}
    comparable = len(means) == len(job.ranks) > 1
    found = {}
    for then, now in zip(earlier.ranks, job.ranks, strict=True):
        resent = goodput = None
        if then.traffic is not None and now.traffic is not None:
            packets = now.traffic.packets - then.traffic.packets
            again = now.traffic.retransmits - then.traffic.retransmits
            chunks = now.traffic.chunks - then.traffic.chunks
            resent = again / packets if packets > 0 and again >= 0 else None
            goodput = chunks * job.payload_bytes * 8 / seconds if chunks >= 0 else None
        found[now.rank] = RankRates(
            sums=waits[now.rank]["sums"] / seconds if now.rank in waits else None,
            late_s=max(means.values()) - means[now.rank] if comparable else None,
            resent=resent,
            goodput=goodput,
        )
    return found


def rendered(before: Overview, after: Overview) -> Group:
    """The active jobs, and their ranks as a table."""
    parts: list[RenderableType] = [
        Text(f"switch {each.name}: {each.state}: {one_line(each.error or '')}", style="red")
        for each in after.health.switches
        if each.state != "connected"
    ]
    for job in after.jobs:
        if job.state not in ENDED_STATES:
            rates = rank_rates(before, after, job)
            rows = [_row(each, rates[each.rank]) for each in job.ranks]
            parts += [Text(headline(job)), plain_table(HEADER, rows, text_columns=3)]
    return Group(*parts)


def headline(job: OverviewJob) -> str:
    """A job in one line."""
    text = f"{name_job(job.id, job.name)}: {job.state}"
    text += f", looks for another way: {job.changing}" if job.changing else f" on {job.title}"
    late = [each.rank for each in job.late]
    return one_line(text + (f"; {name_ranks(late)} late" if late else ""))


def _row(rank: OverviewRank, rates: RankRates) -> tuple[str, ...]:
    traffic = rank.traffic
    state = f"{rank.state}: {rank.reason}" if rank.reason else rank.state
    return (
        str(rank.rank),
        one_line(rank.host or rank.ip or "-"),
        one_line(state),
        _figure(rates.sums),
        _figure(rates.late_s, 1e3),
        _figure(traffic.rtt_s or None, 1e3) if traffic is not None else "-",
        "-" if traffic is None else f"{traffic.window}/{traffic.window_limit}",
        "-" if rates.resent is None else f"{rates.resent:.2%}",
        _figure(rates.goodput, 1e-6),
    )


def _figure(value: float | None, unit: float = 1.0) -> str:
    return "-" if value is None else f"{value * unit:,.1f}"


def news(before: Overview | None, after: Overview) -> list[str]:
    """What has changed for people who read lines: jobs, their states and ways."""
    earlier = {} if before is None else {job.id: job for job in before.jobs}
    lines = []
    for job in after.jobs:
        then = earlier.get(job.id)
        if then is not None and (then.state, then.title) == (job.state, job.title):
            continue
        text = f"{name_job(job.id, job.name)}: {job.state}"
        text += f", on {job.title}" if job.state not in ENDED_STATES else ""
        reason = job.changing or job.reason
        lines.append(one_line(f"{text}: {reason}" if reason else text))
    return lines


class Watch:
    """Asks a controller once a second, in a thread, while the block runs. A controller that does not answer is asked
    again. The end of the block does not wait for its answer.

    show: gets the overview of some seconds ago, and that of now.
    """

    def __init__(self, client: ControllerClient, show: Callable[[Overview, Overview], None]) -> None:
        self._client = client
        self._show = show
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join(_END_S)

    def _run(self) -> None:
        seen: list[Overview] = []
        while not self._over.wait(_INTERVAL_S):
            try:
                seen = [*seen[-_KEPT + 1 :], self._client.overview()]
            except LauncherError as error:
                _log.debug("no overview: %s", error)
                continue
            if not self._over.is_set():
                self._show(seen[0], seen[-1])


@contextmanager
def live_page(client: ControllerClient) -> Iterator[str]:
    """Let this machine's browsers reach the page of a testbed's controller. Yields its URL."""
    assert client.pid is not None
    with Gateway(client.url, client.pid) as gateway:
        yield f"{gateway.url}/live"
