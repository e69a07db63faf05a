# SPDX-License-Identifier: Apache-2.0
"""Names of jobs and hosts: what clients send, and where it appears."""

import pytest

from inagg_contract.ranks import host_name, job_name, name_job, name_ranks, place
from tests.controller.serving import Serving, create_job, run, worker


def test_a_rank_is_named_with_what_is_known_of_its_place() -> None:
    places = {0: place("h1", "10.0.0.1"), 1: place(None, "10.0.0.2"), 2: place("", None)}
    assert name_ranks([0], places) == "rank 0 (h1, 10.0.0.1)"
    assert name_ranks([0, 1, 2, 3], places) == "ranks 0 (h1, 10.0.0.1), 1 (10.0.0.2), 2, 3"
    assert (name_job(7, "train.py"), name_job(7, "")) == ("job 7 (train.py)", "job 7")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("node-7.rack_2", "node-7.rack_2"),
        ("-node", "node"),
        ("<b>x</b>\n", "b-x--b--"),
        ("h\u00f6st", "h-st"),
        ("x" * 200, "x" * 64),
        ("", ""),
    ],
)
def test_any_text_makes_a_name_of_a_host(text: str, name: str) -> None:
    assert host_name(text) == name


def test_any_text_makes_a_name_of_a_job() -> None:
    assert job_name("train\x1b[2J.py\n") == "train?[2J.py?"
    assert job_name("m\u00f6del 7.py") == "m\u00f6del 7.py"
    assert len(job_name("x" * 1000)) == 200


def test_the_job_lists_its_ranks_with_hosts_and_addresses(serving: Serving) -> None:
    async def body() -> None:
        async with serving() as (client, _, _):
            job = await create_job(client, name="train.py")
            number = job["id"]
            assert job["name"] == "train.py"
            await client.post(f"/jobs/{number}/workers", json=worker(1, host="h2"))
            await client.post(f"/jobs/{number}/workers", json=worker(0))  # of an older version
            ranks = [
                {"rank": 0, "ip": "10.0.0.1", "host": ""},
                {"rank": 1, "ip": "10.0.0.2", "host": "h2"},
            ]
            assert (await client.get(f"/jobs/{number}")).json()["ranks"] == ranks
            (listed,) = (await client.get("/jobs")).json()["jobs"]
            assert listed["ranks"] == ranks

    run(body)


def test_registering_again_with_another_name_of_the_host_changes_nothing(serving: Serving) -> None:
    async def body() -> None:
        async with serving() as (client, _, _):
            number = (await create_job(client))["id"]
            for host in ("h2", "h2", "other"):
                answer = await client.post(f"/jobs/{number}/workers", json=worker(1, host=host))
                assert answer.status_code == 200
            assert (await client.get(f"/jobs/{number}")).json()["ranks"][0]["host"] == "h2"

    run(body)


@pytest.mark.parametrize("host", ["h\n2", "<b>", "a b", "\x1b[2J", "x" * 65, 7, "h\u00f6st"])
def test_a_name_of_a_host_that_is_none_is_refused(serving: Serving, host: object) -> None:
    async def body() -> None:
        async with serving() as (client, _, _):
            number = (await create_job(client))["id"]
            answer = await client.post(f"/jobs/{number}/workers", json=worker(1, host=host))
            assert answer.status_code == 422
            assert "host" in answer.json()["detail"]
            assert (await client.get(f"/jobs/{number}")).json()["registered"] == []

    run(body)


@pytest.mark.parametrize("name", ["a\n", "\x1b[2J", "\u2028", "x" * 201, 7])
def test_a_name_of_a_job_that_cannot_be_printed_is_refused(serving: Serving, name: object) -> None:
    async def body() -> None:
        async with serving() as (client, _, _):
            answer = await client.post("/jobs", json={"workers": 1, "slots": 2, "name": name})
            assert answer.status_code == 422
            assert "name" in answer.json()["detail"]

    run(body)


def test_a_lost_rank_is_named_with_its_place_to_the_others_and_in_the_log(
    serving: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async def body() -> None:
        async with serving() as (client, _, _):
            number = (await create_job(client, name="train.py"))["id"]
            for rank in range(2):
                await client.post(f"/jobs/{number}/workers", json=worker(rank, host=f"h{rank + 1}"))
            await client.get(f"/jobs/{number}", params={"wait": "running"})
            await client.delete(f"/jobs/{number}/workers/1", params={"error": "no more memory"})
            beat = (await client.post(f"/jobs/{number}/workers/0/heartbeat")).json()
            assert beat["reason"] == "rank 1 (h2, 10.0.0.2): no more memory"

    run(body)
    lines = caplog.messages
    assert "job 1 (train.py): rank 1 (h2, 10.0.0.2) registered, 2 of 2" in lines
    assert "job 1 (train.py): rank 1 (h2, 10.0.0.2) left: no more memory" in lines
