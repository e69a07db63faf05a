# SPDX-License-Identifier: Apache-2.0
"""A switch that went on while the controller did not run, and the service that finds it again."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from inagg_contract.aggregation import LEASED, Aggregation
from inagg_controller.errors import SwitchRefusedError
from inagg_controller.state_file import StateFile
from inagg_controller.switch.entries import (
    ADMISSION,
    PING_RESPONDER,
    STATION,
    Entity,
    MulticastGroup,
    TableEntry,
)
from tests.controller.memory_switch import MemorySwitch
from tests.controller.serving import SHARED_SLOTS, Serving, create_job, run, settle, start_job

Change = Callable[[MemorySwitch], object]


def lose(table: str) -> Change:
    """An entry of a table is gone."""

    def change(switch: MemorySwitch) -> None:
        switch.remove(switch.in_table(table)[:1])

    return change


def alter(table: str) -> Change:
    """An entry of a table does something else."""

    def change(switch: MemorySwitch) -> None:
        (entry, *_) = switch.in_table(table)
        params = tuple((name, value ^ 1) for name, value in entry.params)
        switch.modify([replace(entry, params=params)])

    return change


def add(switch: MemorySwitch) -> None:
    """There is what no controller of this state has written."""
    switch.insert([TableEntry(STATION, (("mac", 5),), "other", ()), MulticastGroup(77, ((1, 2),))])


def shuffle(switch: MemorySwitch) -> None:
    """The switch answers in another order."""
    for key, entity in list(switch.entities.items()):
        if isinstance(entity, MulticastGroup):
            switch.entities[key] = MulticastGroup(entity.group, entity.replicas[::-1])
        else:
            switch.entities[key] = replace(entity, match=entity.match[::-1], params=entity.params[::-1])


@pytest.mark.parametrize(
    ("change", "state"),
    [
        (lambda _: None, "running"),
        (add, "running"),
        (shuffle, "running"),
        (lose(PING_RESPONDER), "running"),
        (alter(PING_RESPONDER), "running"),
        (lose(ADMISSION), "failed"),
        (alter(ADMISSION), "failed"),
    ],
    ids=["nothing", "add", "shuffle", "lose-base", "alter-base", "lose", "alter"],
)
def test_a_switch_has_again_what_it_should_have(
    serving: Serving, memory_switch: MemorySwitch, tmp_path: Path, change: Change, state: str
) -> None:
    async def body() -> None:
        async with serving(state=(first := StateFile(tmp_path / "state"))) as (client, _, _):
            number = await start_job(client)
            entities = memory_switch.read()
        first.close()
        change(memory_switch)
        async with serving(state=(second := StateFile(tmp_path / "state"))) as (client, service, _):
            job = service.jobs.job(number)
            assert job.state == state
            if state == "running":
                assert {*map(repr_of, memory_switch.read())} == {*map(repr_of, entities)}
                await client.delete(f"/jobs/{number}")
                await settle(lambda: not memory_switch.in_table(ADMISSION))
            else:
                assert job.reason == "switch s1 has lost entries of this job while the controller did not run"
                await settle(lambda: not memory_switch.in_table(ADMISSION))
                await start_job(client)
        second.close()

    run(body)


def repr_of(entity: TableEntry | MulticastGroup) -> str:
    """Equal for entities that do the same."""
    if isinstance(entity, MulticastGroup):
        return repr((entity.group, sorted(entity.replicas)))
    return repr((entity.table, sorted(entity.match), entity.action, sorted(entity.params)))


async def leave_a_job(serving: Serving, state: Path) -> int:
    """Start a job that may go on at its switch, and end the controller. Returns the job's number."""
    with contextlib.closing(StateFile(state)) as file:
        async with serving(state=file) as (client, _, _):
            return await start_job(client, on_path_loss=["same"])


def test_a_job_of_a_switch_that_was_restarted_meanwhile_changes_its_way(
    serving: Serving, memory_switch: MemorySwitch, tmp_path: Path
) -> None:
    async def body() -> None:
        number = await leave_a_job(serving, tmp_path / "state")
        memory_switch.programmed = False
        memory_switch.entities.clear()
        async with serving(state=(second := StateFile(tmp_path / "state"))) as (_, service, _):
            job = service.jobs.job(number)
            assert job.state == "changing"
            assert job.change is not None
            assert job.change.reason == "switch s1 was lost: the sums in its slots are gone"
            assert job.change.found_by == "same"
        second.close()

    run(body)


@pytest.mark.parametrize("wait_s", [0.0, 1.0])
def test_a_switch_that_dies_while_it_is_found_again_has_kept_nothing(
    serving: Serving, memory_switch: MemorySwitch, tmp_path: Path, wait_s: float
) -> None:
    async def body() -> None:
        number = await leave_a_job(serving, tmp_path / "state")
        read = memory_switch.read

        def read_and_die() -> Sequence[Entity]:
            found = read()
            memory_switch.restart()
            return found

        memory_switch.read = read_and_die  # type: ignore[method-assign]
        second = StateFile(tmp_path / "state")
        async with serving(state=second, wait_s=wait_s) as (_, service, _):
            await settle(lambda: service.switches["s1"].connected)
            change = service.jobs.job(number).change
            assert change is not None
            assert change.found_by == "same"
        second.close()

    run(body)


def test_a_switch_that_cannot_be_read_gets_its_program_afresh(
    serving: Serving, memory_switch: MemorySwitch, tmp_path: Path
) -> None:
    async def body() -> None:
        number = await leave_a_job(serving, tmp_path / "state")

        def refuse() -> Sequence[Entity]:
            raise SwitchRefusedError("no wildcards here")

        memory_switch.read = refuse  # type: ignore[method-assign]
        second = StateFile(tmp_path / "state")
        async with serving(state=second) as (_, service, _):
            assert service.jobs.job(number).state == "changing"
            assert service.switches["s1"].connected
        second.close()

    run(body)


def test_jobs_go_on_without_a_switch_that_is_away(
    serving: Serving, memory_switch: MemorySwitch, tmp_path: Path
) -> None:
    """Those on servers, and later those on the switch."""

    async def body() -> None:
        first = StateFile(tmp_path / "state")
        async with serving(state=first) as (client, _, _):
            numbers = [
                await start_job(client, aggregation=kind, on_path_loss=["same"])
                for kind in ("leased", "server")
            ]
        first.close()
        memory_switch.away = True
        second = StateFile(tmp_path / "state")
        async with serving(state=second) as (_, service, _):
            assert [service.jobs.job(number).state for number in numbers] == ["changing", "running"]
            memory_switch.away = False
            await settle(lambda: service.switches["s1"].connected)
            change = service.jobs.job(numbers[0]).change
            assert change is not None
            assert change.found_by == "same"
            assert not memory_switch.in_table(ADMISSION)
        second.close()

    run(body)


def test_jobs_of_every_kind_go_on_and_new_ones_have_other_numbers(
    serving: Serving, memory_switch: MemorySwitch, tmp_path: Path, aggregation: Aggregation
) -> None:
    async def body() -> None:
        async with serving(state=(first := StateFile(tmp_path / "state")), shared_slots=SHARED_SLOTS) as (
            client,
            service,
            _,
        ):
            number = await start_job(client, aggregation=aggregation)
            waiting = await create_job(client, aggregation=aggregation)
            running, entities = service.jobs.job(number), dict(memory_switch.entities)
        first.close()
        async with serving(state=(second := StateFile(tmp_path / "state")), shared_slots=SHARED_SLOTS) as (
            client,
            service,
            _,
        ):
            job = service.jobs.job(number)
            assert (job.state, job.secret, job.members) == ("running", running.secret, running.members)
            assert job.placement.epoch == running.placement.epoch
            assert job.placement.leases == running.placement.leases
            assert memory_switch.entities == entities
            assert service.jobs.job(waiting["id"]).state == "joining"
            new = await create_job(client, aggregation=aggregation)
            assert new["id"] == waiting["id"] + 1
            assert new["epoch"] != waiting["epoch"]
            for one in (number, waiting["id"], new["id"]):
                await client.delete(f"/jobs/{one}")
            await settle(lambda: not memory_switch.in_table(ADMISSION))
            if aggregation == LEASED:
                pool = service.jobs.switches.pools["s1"]
                await settle(lambda: pool.free == pool.size)
        second.close()

    run(body)


def test_an_answer_is_given_only_when_it_is_saved(
    serving: Serving, memory_switch: MemorySwitch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file has each job and each rank at the time of the answer about them."""

    async def body() -> None:
        state = StateFile(tmp_path / "state")
        async with serving(state=state) as (client, _, _):
            job = await create_job(client)
            saved = state.load()
            (record,) = saved.jobs.values()
            assert job["secret"].encode() in record
            assert saved.members == {}
            await client.post(
                f"/jobs/{job['id']}/workers",
                json={"rank": 0, "ip": "10.0.0.1", "mac": "02:00:00:00:00:01", "udp_port": 4000, "port": 1},
            )
            assert [*state.load().members] == [(job["id"], 0)]
        state.close()

    run(body)
