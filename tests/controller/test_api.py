# SPDX-License-Identifier: Apache-2.0
"""The HTTP API over a switch in memory, with virtual time."""

import asyncio

import pytest

from inagg_controller.jobs.job import Policy
from inagg_controller.switch.client import Count
from inagg_controller.switch.entries import ADMISSION, RECEIVER

WORKER = {"ip": "10.0.0.1", "mac": "02:00:00:00:00:01", "udp_port": 4000}


def worker(rank, **changes):
    return {
        "rank": rank,
        "ip": f"10.0.0.{rank + 1}",
        "mac": f"02:00:00:00:00:{rank + 1:02x}",
        "udp_port": 4000,
        "port": rank + 1,
        **changes,
    }


async def start_job(client, workers=2, slots=4):
    number = (await client.post("/jobs", json={"workers": workers, "slots": slots})).json()["id"]
    for rank in range(workers):
        answer = await client.post(f"/jobs/{number}/workers", json=worker(rank))
        assert answer.status_code == 200, answer.text
    job = (await client.get(f"/jobs/{number}", params={"wait": "running"})).json()
    assert job["state"] == "running", job
    return number


async def settle(condition):
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


def run(body):
    """Run a coroutine of a test: (serving) -> coroutine function -> result."""
    return asyncio.run(body())


def test_health_tells_the_programs_properties(serving):
    async def body():
        async with serving() as (client, _, _):
            assert (await client.get("/health")).json() == {
                "switch": "connected",
                "switch_error": None,
                "words": 4,
                "slot_versions": 64,
                "free_slot_versions": 64,
                "aggregator": {"ip": "10.0.0.253", "mac": "02:49:41:00:00:01", "udp_port": 18753},
                "jobs": 0,
            }

    run(body)


def test_a_new_job_is_joining_and_says_what_it_was_granted(serving):
    async def body():
        async with serving() as (client, _, _):
            answer = await client.post("/jobs", json={"workers": 2, "slots": 1024, "name": "digits"})
            assert answer.status_code == 201
            job = answer.json()
            assert job.pop("secret")
            assert (job["state"], job["slots"], job["words"], job["epoch"]) == ("joining", 32, 4, 100)
            assert job["name"] == "digits"
            assert job["policy"]["give_up_s"] == 120
            assert (await client.get("/jobs")).json() == {"jobs": [job]}

    run(body)


def test_a_job_runs_once_its_last_rank_has_registered_and_its_entries_are_in(serving, memory_switch):
    async def body():
        async with serving() as (client, _, _):
            number = await start_job(client)
            assert len(memory_switch.in_table(ADMISSION)) == len(memory_switch.in_table(RECEIVER)) == 2
            assert memory_switch.groups == [1, 2]
            memory_switch.admitted = {(number, 0): Count(5, 500), (99, 0): Count(1, 1)}
            job = (await client.get(f"/jobs/{number}")).json()
            assert job["counters"] == {"0": {"packets": 5, "bytes": 500}}

    run(body)


def test_receivers_and_group_are_in_before_the_first_admission_and_out_after_the_last(serving, memory_switch):
    async def body():
        async with serving() as (client, _, _):
            memory_switch.calls.clear()
            number = await start_job(client)
            await client.delete(f"/jobs/{number}")
            await settle(lambda: memory_switch.groups == [1])

    run(body)
    order = [(verb, getattr(entity, "table", "group")) for verb, entity in memory_switch.calls]
    assert order == [
        *[("insert", RECEIVER)] * 2,
        ("insert", "group"),
        *[("insert", ADMISSION)] * 2,
        *[("remove", ADMISSION)] * 2,
        ("remove", "group"),
        *[("remove", RECEIVER)] * 2,
    ]


def test_a_registration_tells_the_workers_place(serving):
    async def body():
        async with serving() as (client, _, _):
            await client.post("/jobs", json={"workers": 2, "slots": 4})
            answer = (await client.post("/jobs/1/workers", json={"rank": 1, **WORKER})).json()
            assert (answer["rank"], answer["bit"], answer["port"]) == (1, 2, 1)
            assert answer["registered"] == [1]

    run(body)


@pytest.mark.parametrize("mtu", [1072, 9000, None])
def test_a_path_that_takes_a_data_packet_will_do(serving, mtu):
    async def body():
        async with serving() as (client, _, _):
            await client.post("/jobs", json={"workers": 2, "slots": 4})
            answer = await client.post("/jobs/1/workers", json=worker(1, mtu=mtu))
            assert (answer.status_code, answer.json()["registered"]) == (200, [1])

    run(body)


def test_registering_the_same_worker_again_changes_nothing(serving):
    async def body():
        async with serving() as (client, _, _):
            await client.post("/jobs", json={"workers": 2, "slots": 4})
            first = await client.post("/jobs/1/workers", json=worker(0))
            again = await client.post("/jobs/1/workers", json=worker(0))
            assert (first.status_code, first.json()) == (again.status_code, again.json())

    run(body)


@pytest.mark.parametrize(
    ("changes", "status", "detail"),
    [
        ({"ip": "10.0.0.9"}, 409, "rank 0 of job 1 is already registered by a worker at another address"),
        ({"rank": 1, "ip": "10.0.0.1"}, 409, "rank 0 of job 1 already has this address and UDP port"),
        ({"rank": 2}, 422, "rank is 2; the ranks of job 1 are 0 to 1"),
        ({"rank": -1}, 422, "rank is -1"),
        ({"rank": "1"}, 422, "body.rank: Input should be a valid integer"),
        ({"rank": True}, 422, "body.rank: Input should be a valid integer"),
        ({"ip": "10.0.0"}, 422, "body.ip"),
        ({"ip": "224.0.0.1"}, 422, "224.0.0.1 is not a host's address"),
        ({"ip": "0.0.0.0"}, 422, "0.0.0.0 is not a host's address"),
        ({"mac": "02-00-00-00-00-01"}, 422, "is not a MAC address such as"),
        ({"mac": "01:00:5e:00:00:01"}, 422, "01:00:5e:00:00:01 is not a station's address"),
        ({"mac": "00:00:00:00:00:00"}, 422, "is not a station's address"),
        ({"udp_port": 0}, 422, "body.udp_port"),
        ({"udp_port": 18753}, 422, "udp_port 18753 is reserved for the aggregator"),
        ({"ip": "10.0.0.253"}, 422, "ip is the aggregator's own"),
        ({"udp_port": 65536}, 422, "body.udp_port"),
        ({"ip": "10.0.0.9", "port": 7}, 422, "port is 7; the switch's ports are [1, 2, 3, 4, 255]"),
        ({"rank": 1, "ip": "10.0.0.2", "port": 3}, 422, "a --host option names 2 for this ip"),
        ({"ip": "10.0.0.9", "port": None}, 422, "port is missing"),
        ({"mac": "02:49:41:00:00:01"}, 422, "mac is the aggregator's own"),
        ({"ip": "10.0.0.3", "port": 3}, 422, "mac is not the one that a --host option names for this ip"),
        ({"mac": "02:00:00:00:00:bb"}, 422, "mac is the one that a --host option names for another host"),
        ({"mtu": 1071}, 422, "mtu is 1071, but a DATA packet of this switch needs 1072 bytes (WORDS = 4)"),
        ({"mtu": 67}, 422, "body.mtu"),
        ({"mtu": "1500"}, 422, "body.mtu"),
        ({"colour": "red"}, 422, "body.colour: Extra inputs are not permitted"),
    ],
)
def test_a_bad_registration_is_refused_and_changes_nothing(serving, changes, status, detail):
    async def body():
        async with serving() as (client, _, _):
            await client.post("/jobs", json={"workers": 2, "slots": 4})
            await client.post("/jobs/1/workers", json=worker(0))
            before = (await client.get("/jobs")).json()
            answer = await client.post("/jobs/1/workers", json=worker(0) | changes)
            problem = answer.json()
            assert (answer.status_code, problem["status"]) == (status, status)
            assert answer.headers["content-type"] == "application/problem+json"
            assert detail in problem["detail"]
            assert problem["type"].startswith("urn:inagg:")
            assert problem["title"]
            assert (await client.get("/jobs")).json() == before

    run(body)


@pytest.mark.parametrize(
    "body",
    [
        {"workers": 0, "slots": 4},
        {"workers": 65, "slots": 4},
        {"workers": 2, "slots": 3},
        {"workers": 2, "slots": 1},
        {"workers": 2, "slots": 0},
        {"workers": 2, "slots": -4},
        {"workers": 2.0, "slots": 4},
        {"workers": 2},
        [],
    ],
)
def test_a_bad_job_is_refused(serving, body):
    async def test():
        async with serving() as (client, _, _):
            assert (await client.post("/jobs", json=body)).status_code == 422
            assert (await client.get("/jobs")).json() == {"jobs": []}

    run(test)


def test_unknown_jobs_and_paths_are_not_found_and_wrong_methods_refused(serving):
    async def body():
        async with serving() as (client, _, _):
            for method, path, status in [
                ("GET", "/jobs/5", 404),
                ("DELETE", "/jobs/5", 404),
                ("POST", "/jobs/5/workers/0/heartbeat", 404),
                ("GET", "/nothing", 404),
                ("PUT", "/jobs", 405),
            ]:
                answer = await client.request(method, path, json=None)
                assert (answer.status_code, answer.json()["status"]) == (status, status)

    run(body)


def test_a_wrong_method_is_answered_with_all_that_there_are(serving):
    async def body():
        async with serving() as (client, _, _):
            for method, path, allowed in [
                ("PUT", "/jobs", "GET, POST"),
                ("PUT", "/jobs/5", "DELETE, GET"),
                ("POST", "/loss", "DELETE, GET, PUT"),
                ("PATCH", "/jobs/5/workers/0", "DELETE"),
                ("POST", "/metrics", "GET"),
            ]:
                answer = await client.request(method, path)
                assert (answer.status_code, answer.headers["allow"]) == (405, allowed), path
            assert (await client.post("/docs")).status_code == 405

    run(body)


def test_a_job_that_runs_or_has_ended_takes_no_new_worker(serving):
    async def body():
        async with serving() as (client, _, _):
            number = await start_job(client)
            stranger = worker(0, ip="10.0.0.7")
            assert (await client.post(f"/jobs/{number}/workers", json=stranger)).status_code == 409
            await client.delete(f"/jobs/{number}")
            answer = await client.post(f"/jobs/{number}/workers", json=worker(0))
            assert (answer.status_code, answer.json()["detail"]) == (
                409,
                "job 1 has failed (ended on request)",
            )

    run(body)


def test_a_silent_rank_is_lost_its_job_fails_and_its_entries_go(serving, memory_switch):
    async def body():
        async with serving(Policy(heartbeat_timeout_s=3.0)) as (client, service, clock):
            number = await start_job(client)
            for clock.now in (0.5, 1.0, 1.5, 2.0, 2.5, 3.0):
                service.jobs.tick(clock())
                beat = await client.post(f"/jobs/{number}/workers/0/heartbeat", json={})
                assert beat.status_code == 200
            await settle(lambda: memory_switch.groups == [1])
            beat = await client.post(f"/jobs/{number}/workers/0/heartbeat")
            assert beat.json() == {
                "state": "failed",
                "lost": [{"rank": 1, "reason": "no heartbeat for 3 s"}],
                "reason": "rank 1: no heartbeat for 3 s",
                "mismatch": None,
                "ask": None,
                "waits": {"0": {"sums": 0, "waited_s": 0.0}},
            }
            assert memory_switch.in_table(ADMISSION) == memory_switch.in_table(RECEIVER) == []
            assert (await client.get("/health")).json()["free_slot_versions"] == 64

    run(body)


def test_leaving_one_after_another_finishes_a_job_and_the_rest_are_told_meanwhile(serving, memory_switch):
    async def body():
        async with serving() as (client, _, _):
            number = await start_job(client)
            await client.delete(f"/jobs/{number}/workers/1")
            beat = (await client.post(f"/jobs/{number}/workers/0/heartbeat")).json()
            assert beat == {
                "state": "running",
                "lost": [{"rank": 1, "reason": "left"}],
                "reason": None,
                "mismatch": None,
                "ask": None,
                "waits": {},
            }
            told = await client.post(f"/jobs/{number}/workers/0/heartbeat", json={"sums": 3, "waited_s": 0.5})
            assert told.json()["waits"] == {"0": {"sums": 3, "waited_s": 0.5}}
            assert len(memory_switch.in_table(ADMISSION)) == 2
            again = await client.delete(f"/jobs/{number}/workers/1")
            assert again.status_code == 200
            job = (await client.delete(f"/jobs/{number}/workers/0")).json()
            assert (job["state"], job["lost"], job["left"]) == ("finished", [], [0, 1])
            await settle(lambda: memory_switch.groups == [1])

    run(body)


def test_a_rank_that_leaves_with_an_error_fails_the_job_at_once(serving):
    async def body():
        async with serving() as (client, _, _):
            number = await start_job(client)
            await client.delete(f"/jobs/{number}/workers/1", params={"error": "chunk 5: bad checksum"})
            beat = (await client.post(f"/jobs/{number}/workers/0/heartbeat")).json()
            assert beat["lost"] == [{"rank": 1, "reason": "chunk 5: bad checksum"}]
            assert beat["state"] == "failed"

    run(body)


def test_a_long_poll_answers_when_the_job_runs_and_holds_up_nobody(serving):
    async def body():
        async with serving() as (client, _, _):
            await client.post("/jobs", json={"workers": 2, "slots": 4})
            await client.post("/jobs/1/workers", json=worker(0))
            polls = [
                asyncio.create_task(client.get("/jobs/1", params={"wait": "running", "timeout_s": 60}))
                for _ in range(20)
            ]
            await asyncio.sleep(0)
            await client.post("/jobs/1/workers", json=worker(1))
            answers = await asyncio.gather(*polls)
            assert {answer.json()["state"] for answer in answers} == {"running"}

    run(body)


def test_a_long_poll_answers_with_the_job_as_it_is_when_its_time_is_up(serving):
    async def body():
        async with serving() as (client, _, _):
            await client.post("/jobs", json={"workers": 2, "slots": 4})
            answer = await client.get("/jobs/1", params={"wait": "running", "timeout_s": 0.01})
            assert (answer.status_code, answer.json()["state"]) == (200, "joining")

    run(body)


def test_a_job_whose_ranks_do_not_all_come_fails_by_itself(serving):
    async def body():
        async with serving(Policy(join_timeout_s=5)) as (client, service, clock):
            await client.post("/jobs", json={"workers": 3, "slots": 4})
            await client.post("/jobs/1/workers", json=worker(1))
            clock.now = 5.0
            service.jobs.tick(clock())
            job = (await client.get("/jobs/1")).json()
            assert (job["state"], job["reason"]) == ("failed", "ranks [0, 2] did not join in time")

    run(body)


def test_a_full_pool_is_503_and_says_so(serving):
    async def body():
        async with serving() as (client, _, _):
            granted = []
            while (answer := await client.post("/jobs", json={"workers": 1, "slots": 8})).is_success:
                granted.append(answer.json()["slots"])
            assert sum(granted) == 32
            assert answer.status_code == 503
            assert "the slot pool is full: 0 of 64 slot versions are free" in answer.json()["detail"]

    run(body)


def test_a_switch_that_refuses_entries_fails_the_job_and_keeps_none_of_them(serving, memory_switch):
    async def body():
        async with serving() as (client, _, _):
            memory_switch.refuse = lambda entity: getattr(entity, "table", None) == ADMISSION
            await client.post("/jobs", json={"workers": 2, "slots": 4})
            for rank in range(2):
                await client.post("/jobs/1/workers", json=worker(rank))
            job = (await client.get("/jobs/1", params={"wait": "running"})).json()
            assert job["state"] == "failed"
            assert "the switch refused the job's entries: the switch is full" in job["reason"]
            await settle(lambda: memory_switch.groups == [1])
            assert memory_switch.in_table(RECEIVER) == []

    run(body)


def test_a_lease_is_kept_until_the_switch_has_let_go_of_the_entries(serving, memory_switch):
    async def body():
        async with serving() as (client, service, clock):
            number = await start_job(client, slots=32)
            memory_switch.refuse_removal = lambda entity: True
            await client.delete(f"/jobs/{number}")
            await settle(lambda: service.jobs.job(number).retry_at is not None)
            assert (await client.post("/jobs", json={"workers": 1, "slots": 2})).status_code == 503
            memory_switch.refuse_removal = lambda entity: False
            clock.now = 1.0
            await settle(lambda: memory_switch.groups == [1])
            assert (await client.post("/jobs", json={"workers": 1, "slots": 2})).status_code == 201

    run(body)


def test_a_restarted_switch_fails_running_jobs_keeps_joining_ones_and_is_set_up_again(serving, memory_switch):
    async def body():
        async with serving() as (client, service, _):
            number = await start_job(client)
            await client.put("/loss", json={"port": 1, "direction": "ingress", "probability": 0.5})
            await client.post("/jobs", json={"workers": 1, "slots": 4})
            memory_switch.away = True
            memory_switch.restart()
            await settle(lambda: service.link.state == "lost")
            failed = (await client.get(f"/jobs/{number}")).json()
            assert failed["state"] == "failed"
            assert failed["reason"].startswith("switch restarted")
            assert (await client.post("/jobs", json={"workers": 1, "slots": 4})).status_code == 503
            assert (await client.get("/counters")).status_code == 503
            await client.post("/jobs/2/workers", json=worker(0))
            memory_switch.away = False
            waiting = (await client.get("/jobs/2", params={"wait": "running"})).json()
            assert waiting["state"] == "running"
            assert memory_switch.connections == 2
            assert len(memory_switch.in_table("InaggIngress.ingress_loss.ingress_loss")) == 2
            assert len(memory_switch.in_table("InaggIngress.arp_responder.arp_responder")) == 1
            assert memory_switch.groups == [1, 3]

    run(body)


def test_loss_is_set_per_port_direction_and_traffic_and_cleared(serving, memory_switch):
    table = "InaggIngress.ingress_loss.ingress_loss"

    async def body():
        async with serving() as (client, _, _):
            loss = {"port": 2, "direction": "ingress", "probability": 0.5}
            assert (await client.put("/loss", json=loss)).status_code == 200
            await client.put("/loss", json={**loss, "traffic": "other", "probability": 1})
            assert (await client.get("/loss")).json() == {
                "loss": [
                    {"port": 2, "direction": "ingress", "probability": 0.5, "traffic": "aggregation"},
                    {"port": 2, "direction": "ingress", "probability": 1.0, "traffic": "other"},
                ]
            }
            assert {(entry.match, entry.params) for entry in memory_switch.in_table(table)} == {
                ((("port", 2), ("aggregation", 1)), (("threshold", 2**31),)),
                ((("port", 2), ("aggregation", 0)), (("threshold", 2**32 - 1),)),
            }
            await client.put("/loss", json={**loss, "traffic": "aggregation", "probability": 0})
            assert len(memory_switch.in_table(table)) == 1
            assert (await client.delete("/loss")).json() == {"loss": []}
            assert memory_switch.in_table(table) == []

    run(body)


@pytest.mark.parametrize(
    "changes",
    [{"probability": 1.5}, {"probability": -0.1}, {"direction": "up"}, {"traffic": "ssh"}, {"port": 9}],
)
def test_a_bad_loss_is_refused(serving, changes):
    async def body():
        async with serving() as (client, _, _):
            loss = {"port": 2, "direction": "ingress", "probability": 0.5} | changes
            assert (await client.put("/loss", json=loss)).status_code == 422
            assert (await client.get("/loss")).json() == {"loss": []}

    run(body)


def test_a_loss_that_the_switch_refuses_is_not_in_force(serving, memory_switch):
    async def body():
        async with serving() as (client, _, _):
            memory_switch.refuse = lambda entity: True
            loss = {"port": 2, "direction": "ingress", "probability": 0.5}
            assert (await client.put("/loss", json=loss)).status_code == 503
            assert (await client.get("/loss")).json() == {"loss": []}

    run(body)


def test_a_defect_in_a_task_is_told_and_not_survived(serving, caplog):
    crashed = []

    async def body():
        async with serving(on_crash=lambda: crashed.append(True)) as (_, service, _):
            service.jobs.tick = lambda now: 1 // 0
            await settle(lambda: crashed)

    run(body)
    assert "_tick_on has failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_counters_come_by_name_and_port(serving):
    async def body():
        async with serving() as (client, _, _):
            assert (await client.get("/counters")).json() == {
                "started": {
                    "1": {"packets": 1, "bytes": 100},
                    "2": {"packets": 2, "bytes": 200},
                }
            }

    run(body)


def test_an_ended_job_keeps_its_last_counters(serving, memory_switch):
    async def body():
        async with serving() as (client, _, _):
            number = await start_job(client)
            memory_switch.admitted = {(number, 1): Count(5, 500)}
            await client.delete(f"/jobs/{number}")
            await settle(lambda: memory_switch.groups == [1])
            job = (await client.get(f"/jobs/{number}")).json()
            assert job["counters"] == {"1": {"packets": 5, "bytes": 500}}

    run(body)
