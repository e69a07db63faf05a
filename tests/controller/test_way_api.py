# SPDX-License-Identifier: Apache-2.0
"""The requests by which the ranks of a job change its way."""

from base64 import urlsafe_b64encode
from collections.abc import Sequence
from typing import Any

import pytest

from tests.controller.memory_switch import MemorySwitch
from tests.controller.serving import Serving, asking, run, settle, start_job

OPTIONS = ["same", "other", "servers", "fail"]


def published(chunks: Sequence[int]) -> str:
    return urlsafe_b64encode(b"".join(chunk.to_bytes(4, "big") for chunk in chunks)).decode()


def test_ranks_publish_fill_in_and_go_on(serving: Serving, memory_switch: MemorySwitch) -> None:
    async def body() -> None:
        async with serving() as (client, service, clock):
            number = await start_job(client, on_path_loss=OPTIONS)
            epoch = service.jobs.job(number).placement.epoch

            async def post(rank: int, step: str, timeout_s: float = 0.0, **document: Any) -> dict[str, Any]:
                answer = await client.post(
                    f"/jobs/{number}/workers/{rank}/{step}",
                    json=document,
                    params={"timeout_s": timeout_s} if step in ("frozen", "results") else {},
                )
                assert answer.status_code == 200, answer.text
                found: dict[str, Any] = answer.json()
                return found

            memory_switch.restart()
            await settle(lambda: service.jobs.job(number).state == "changing")
            beat = await post(0, "heartbeat")
            assert (beat["state"], beat["lost_way"]) == ("changing", epoch)
            assert beat["lost_why"] == "switch s1 was lost: the sums in its slots are gone"
            first = await post(0, "frozen", epoch=epoch, chunks=published([4, 1, 2, 3]), server_udp_port=5000)
            assert (first["state"], first["lost"], first["frozen"], first["lacks"]) == (
                "changing",
                epoch,
                False,
                [],
            )
            second = await post(1, "frozen", epoch=epoch, chunks=published([0, 1, 6, 3]))
            assert (second["frozen"], second["lacks"], second["gives"]) == (True, [0], [2])

            clock.now += 0.2
            await settle(lambda: service.jobs.job(number).placement.ready)
            asked = await post(0, "results", 5.0, epoch=epoch, wanted=[2])
            assert (asked["gives"], asked["results"]) == ([0], [])
            datagram = urlsafe_b64encode(bytes(range(250, 256))).decode()
            given = [{"chunk": 0, "datagram": datagram}]
            assert (await post(0, "results", epoch=epoch, given=given, wanted=[2]))["gives"] == []
            filled = await post(1, "results", 5.0, epoch=epoch, wanted=[0])
            assert filled["results"] == given
            await post(1, "results", epoch=epoch, given=[{"chunk": 2, "datagram": datagram}])
            ready = await post(0, "results", 5.0, epoch=epoch, wanted=[2])
            assert (ready["ready"], ready["results"]) == (True, [{"chunk": 2, "datagram": datagram}])
            way = ready["way"]
            assert (way["rank"], way["member"], way["switch"]) == (0, 0, "s1")
            assert way["epoch"] != epoch

            assert (await post(0, "resumed", epoch=way["epoch"]))["state"] == "changing"
            job = await post(1, "resumed", epoch=way["epoch"])
            assert (job["state"], job["changes"]) == ("running", 1)
            assert (await post(0, "resumed", epoch=way["epoch"]))["state"] == "running"  # the answer was lost
            late = await post(0, "frozen", epoch=epoch, chunks=published(range(4)))
            assert (late["state"], late["lost"]) == ("running", None)
            assert (await post(0, "heartbeat"))["lost_way"] is None

    run(body)


def test_a_rank_reports_a_way_that_does_not_answer(serving: Serving) -> None:
    async def body() -> None:
        async with serving() as (client, service, _):
            number = await start_job(client, on_path_loss=OPTIONS)
            epoch = service.jobs.job(number).placement.epoch
            for reported in (epoch ^ 1, epoch, epoch):
                document = {"epoch": reported, "reason": "it does not answer"}
                answer = await client.post(f"/jobs/{number}/workers/1/lost-way", json=document)
                assert answer.json()["state"] == ("running" if reported != epoch else "changing")
            change = service.jobs.job(number).change
            assert change is not None
            assert change.reason == "rank 1 (10.0.0.2): it does not answer"
            assert change.found_by == "same"

    run(body)


@pytest.mark.parametrize("asker", ["192.0.2.1", "10.0.0.1"])
def test_an_address_beside_the_switches_counts_if_the_request_comes_from_it(
    serving: Serving, memory_switch: MemorySwitch, asker: str
) -> None:
    async def body() -> None:
        async with serving() as (client, service, clock):
            number = await start_job(client, workers=1, on_path_loss=["servers"])
            job = service.jobs.job(number)
            memory_switch.restart()
            await settle(lambda: job.state == "changing")
            beside = {"ip": "192.0.2.1", "udp_port": 6000, "server_udp_port": 7000}
            document = {"epoch": job.placement.epoch, "chunks": published(range(4)), "server_udp_port": 5000}
            async with asking(service, asker, job.secret) as rank:
                path = f"/jobs/{number}/workers/0"
                answer = await rank.post(f"{path}/frozen", json=document | {"beside": beside})
                assert answer.status_code == 200, answer.text
                clock.now += 0.2
                await settle(lambda: job.placement.aggregation == "server")
                found = await rank.post(f"{path}/results", json={"epoch": document["epoch"]})
            way = found.json()["way"]
            ip, ports = ("192.0.2.1", (6000, 7000)) if asker == beside["ip"] else ("10.0.0.1", (4000, 5000))
            assert [(each["ip"], each["udp_port"]) for each in way["members"]] == [(ip, ports[0])]
            assert [(each["ip"], each["udp_port"]) for each in way["servers"]] == [(ip, ports[1])]

    run(body)


def test_what_makes_no_sense_is_refused(serving: Serving, memory_switch: MemorySwitch) -> None:
    async def body() -> None:
        async with serving() as (client, service, _):
            number = await start_job(client, on_path_loss=OPTIONS)
            epoch = service.jobs.job(number).placement.epoch
            memory_switch.restart()
            await settle(lambda: service.jobs.job(number).state == "changing")
            ok = {"epoch": epoch, "chunks": published(range(4))}
            for rank, step, document, status, detail in (
                (0, "frozen", ok | {"chunks": "AAAA"}, 422, "no whole number"),
                (0, "frozen", ok | {"chunks": "A"}, 422, "chunks"),
                (0, "frozen", ok | {"chunks": published(range(3))}, 422, "the job has 4 slots"),
                (0, "frozen", ok | {"server_udp_port": 18753}, 422, "reserved for the aggregator"),
                (2, "frozen", ok, 422, "the ranks of job 1 are 0 to 1"),
                (0, "resumed", {"epoch": epoch}, 409, "does not go on"),
                (0, "lost-way", {"epoch": 0, "reason": ""}, 422, "epoch"),
            ):
                answer = await client.post(f"/jobs/{number}/workers/{rank}/{step}", json=document)
                assert (answer.status_code, detail in answer.text) == (status, True), answer.text
            for rank in range(2):
                await client.post(f"/jobs/{number}/workers/{rank}/frozen", json=ok)
            for datagram in ("", "A" * 8000):  # the job's packets have 1 KiB
                gift = {"epoch": epoch, "given": [{"chunk": 3, "datagram": datagram}]}
                answer = await client.post(f"/jobs/{number}/workers/0/results", json=gift)
                assert answer.status_code == 422, answer.text
            gift = {"epoch": epoch, "given": [{"chunk": 3, "datagram": "AAAA"}]}
            answer = await client.post(f"/jobs/{number}/workers/0/results", json=gift)
            assert (answer.status_code, "no rank needs chunk 3" in answer.text) == (409, True)
            assert service.jobs.job(number).state == "changing"

    run(body)
