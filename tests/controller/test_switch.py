# SPDX-License-Identifier: Apache-2.0
"""The switch through p4runtime-shell, against a P4Runtime server in memory."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf import text_format
from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2

from inagg_controller.errors import SwitchRefusedError, SwitchTakenError, SwitchUnreachableError
from inagg_controller.switch.client import Count, P4RuntimeSwitch
from inagg_controller.switch.entries import (
    Member,
    Parent,
    SharedServer,
    Sharing,
    arp_entry,
    flood_group,
    job_entries,
    loss_entry,
    unicast_group,
)
from inagg_controller.switch.program import Program, load_program
from inagg_controller.switch.session import ELECTION_ID, Session
from inagg_switch.p4runtime.server import SwitchServer
from inagg_switch.ports import Ports
from tests.controller.fake_server import FakeServer
from tests.waiting import wait_until

MEMBERS = {
    0: Member(rank=0, ip=0x0A000001, mac=0x020000000001, udp_port=4000, port=1),
    1: Member(rank=1, ip=0x0A000002, mac=0x020000000002, udp_port=4001, port=2),
}
JOB = job_entries(job=7, epoch=9, first_chunk=0xFFFFFFF8, slot_base=16, slots=4, group=2, members=MEMBERS)
GROUPED = job_entries(job=8, epoch=10, slot_base=32, slots=4, group=3, members=MEMBERS, results_ip=0xEFC00008)


@pytest.fixture
def switch(fake_server: FakeServer, program: Program) -> Iterator[P4RuntimeSwitch]:
    switch = P4RuntimeSwitch(fake_server.address, 1, program)
    yield switch
    switch.close()


def nothing(error: SwitchUnreachableError) -> None:
    pass


class Heard(threading.Event):
    """The arguments of on_lost."""

    def __call__(self, error: SwitchUnreachableError) -> None:
        self.error = error
        self.set()


def test_connecting_pushes_the_pipeline_as_the_files_have_it(
    switch: P4RuntimeSwitch, fake_server: FakeServer, p4info: p4info_pb2.P4Info, program: Program
) -> None:
    switch.connect(nothing)
    assert fake_server.servicer.primary == ELECTION_ID
    config = fake_server.servicer.config
    assert config is not None
    assert config.p4info == p4info
    assert config.p4_device_config == program.device_config


def test_a_jobs_entries_reach_the_switch_with_their_values(
    switch: P4RuntimeSwitch, fake_server: FakeServer
) -> None:
    switch.connect(nothing)
    for stage in JOB.stages:
        switch.insert(stage)
    servicer = fake_server.servicer
    assert servicer.table("InaggEgress.delivery.receiver") == {
        (7, 0): ("InaggEgress.delivery.deliver", {"mac": 0x020000000001, "ip": 0x0A000001, "udp_port": 4000}),
        (7, 1): ("InaggEgress.delivery.deliver", {"mac": 0x020000000002, "ip": 0x0A000002, "udp_port": 4001}),
    }
    common = {"all": 0b11, "slot_base": 16, "slot_mask": 7, "epoch": 9, "result_group": 2}
    common |= {"first_chunk": 0xFFFFFFF8, "parents": 0, "run_bits": 0}
    assert servicer.table("InaggIngress.admission.admission") == {
        (1, 0x0A000001, 7, 0): ("InaggIngress.admission.admit", {"member": 0b01, **common}),
        (2, 0x0A000002, 7, 1): ("InaggIngress.admission.admit", {"member": 0b10, **common}),
    }
    assert servicer.groups == {2: [(1, 1), (2, 2)]}


def test_a_switch_below_others_knows_them_and_the_port_of_its_member_0(
    switch: P4RuntimeSwitch, fake_server: FakeServer
) -> None:
    above = [
        Parent(ip=0x0A010000 + turn, mac=0x024941000000 + turn, port=40 + turn, rank=3) for turn in (1, 2)
    ]
    members = {rank: replace(member, port=9 - rank) for rank, member in MEMBERS.items()}
    below = job_entries(
        job=7, epoch=9, slot_base=16, slots=4, group=2, members=members, parents=above, own=(0xAA, 0xBB)
    )
    switch.connect(nothing)
    for stage in below.stages:
        switch.insert(stage)
    servicer = fake_server.servicer
    arrival = {"all": 0b11, "slot_base": 16, "slot_mask": 7, "epoch": 9, "result_group": 2}
    arrival |= {"mac": 0xAA, "ip": 0xBB, "first_port": 9}
    assert servicer.table("InaggIngress.admission.parent") == {
        (41, 0x0A010001, 7): ("InaggIngress.admission.accept_result", arrival),
        (42, 0x0A010002, 7): ("InaggIngress.admission.accept_result", arrival),
    }
    assert servicer.table("InaggIngress.slots.uplink") == {
        (7, 0): (
            "InaggIngress.slots.send_up",
            {"port": 41, "mac": 0x024941000001, "ip": 0x0A010001, "rank": 3},
        ),
        (7, 1): (
            "InaggIngress.slots.send_up",
            {"port": 42, "mac": 0x024941000002, "ip": 0x0A010002, "rank": 3},
        ),
    }
    admitted = servicer.table("InaggIngress.admission.admission")
    # Of four slots, two in a row go one way.
    assert [(params["parents"], params["run_bits"]) for _, params in admitted.values()] == [(2, 1)] * 2


def test_a_job_on_shared_slots_leads_to_its_servers(switch: P4RuntimeSwitch, fake_server: FakeServer) -> None:
    servers = tuple(
        SharedServer(ip=0x0A000100 + number, mac=0x0200000000A0 + number, udp_port=5000, port=4)
        for number in (1, 2)
    )
    bits = {rank: 1 << rank for rank in MEMBERS}
    sharing = Sharing(
        base=48,
        size=16,
        offset=12,
        bits=bits,
        servers=servers,
        homes=(0, 1),
        home_ports={0: 1},
        priority=255,
        expiry_us=20_000,
    )
    shared = job_entries(
        job=7, epoch=9, group=2, members=MEMBERS, slots=64, sharing=sharing, own=(0xAA, 0xBB)
    )
    switch.connect(nothing)
    for stage in shared.stages:
        switch.insert(stage)
    servicer = fake_server.servicer
    assert servicer.table("InaggIngress.shared_slots.sharing") == {
        (7,): (
            "InaggIngress.shared_slots.share",
            {
                "base": 48,
                "mask": 15,
                "offset": 12,
                "servers": 2,
                "run_bits": 5,
                "homes": 0b11,
                "job_priority": 255,
                "expiry_us": 20000,
                "mac": 0xAA,
                "ip": 0xBB,
            },
        )
    }
    assert servicer.table("InaggEgress.delivery.home") == {(7, 0, 1): ("InaggEgress.delivery.skip", {})}
    assert servicer.table("InaggIngress.shared_slots.server") == {
        (7, index): (
            "InaggIngress.shared_slots.send",
            {"port": 4, "mac": 0x0200000000A1 + index, "ip": 0x0A000101 + index, "udp_port": 5000, "rank": 0},
        )
        for index in range(2)
    }
    assert servicer.table("InaggIngress.shared_slots.displacement") == {
        (7, expired): ("InaggIngress.shared_slots.count_displaced", {}) for expired in (0, 1)
    }
    assert switch.read_displaced() == {(7, False): Count(7, 700), (7, True): Count(7, 700)}
    assert switch.read_admitted() == {(7, 0): Count(7, 700), (7, 1): Count(7, 700)}
    lease = {"all": 0b11, "slot_base": 0, "slot_mask": 0, "epoch": 9, "result_group": 2}
    arrival = ("InaggIngress.admission.accept_result", {**lease, "mac": 0xAA, "ip": 0xBB, "first_port": 1})
    assert servicer.table("InaggIngress.admission.parent") == {
        (4, 0x0A000101, 7): arrival,
        (4, 0x0A000102, 7): arrival,
    }
    admitted = servicer.table("InaggIngress.admission.admission")
    assert [params for _, params in admitted.values()] == [
        {"member": 1 << rank, **lease, "first_chunk": 0, "parents": 0, "run_bits": 0} for rank in range(2)
    ]
    for stage in reversed(shared.stages):
        switch.remove(stage)
    assert (servicer.entries, servicer.groups) == ({}, {})


def test_removing_takes_out_exactly_what_was_inserted(
    switch: P4RuntimeSwitch, fake_server: FakeServer
) -> None:
    switch.connect(nothing)
    switch.insert([arp_entry(1, 2)])
    for stage in JOB.stages:
        switch.insert(stage)
    for stage in reversed(JOB.stages):
        switch.remove(stage)
    assert fake_server.servicer.groups == {}
    assert len(fake_server.servicer.entries) == 1


def test_removing_what_was_never_inserted_writes_nothing(
    switch: P4RuntimeSwitch, fake_server: FakeServer
) -> None:
    switch.connect(nothing)
    switch.remove([*JOB.receivers, JOB.group])
    assert fake_server.servicer.writes == []


def test_a_half_refused_batch_says_so_and_can_be_taken_back(
    switch: P4RuntimeSwitch, fake_server: FakeServer
) -> None:
    switch.connect(nothing)
    fake_server.servicer.refused_tables = {"InaggEgress.egress_loss.egress_loss"}
    batch = [arp_entry(1, 2), loss_entry(1, "egress", True, 0.5)]
    with pytest.raises(SwitchRefusedError, match="1 of 2 writes refused, the first with RESOURCE_EXHAUSTED"):
        switch.insert(batch)
    switch.remove(batch)
    assert fake_server.servicer.entries == {}


def test_a_batch_refused_as_a_whole_can_be_taken_back_whatever_came_of_it(
    switch: P4RuntimeSwitch, fake_server: FakeServer
) -> None:
    switch.connect(nothing)
    fake_server.servicer.write_error = "out of memory"
    with pytest.raises(SwitchRefusedError, match="INTERNAL: out of memory"):
        switch.insert([arp_entry(1, 2), arp_entry(2, 2)])
    fake_server.servicer.write_error = None
    assert len(fake_server.servicer.entries) == 1
    switch.remove([arp_entry(1, 2), arp_entry(2, 2)])
    assert fake_server.servicer.entries == {}


def test_modifying_replaces_an_entrys_parameters(switch: P4RuntimeSwitch, fake_server: FakeServer) -> None:
    switch.connect(nothing)
    switch.insert([loss_entry(1, "ingress", True, 0.5)])
    switch.modify([loss_entry(1, "ingress", True, 0.25)])
    table = fake_server.servicer.table("InaggIngress.ingress_loss.ingress_loss")
    assert table == {(1, 1): ("InaggIngress.ingress_loss.inject_ingress_loss", {"threshold": 1 << 30})}


def test_modifying_a_group_replaces_its_copies(switch: P4RuntimeSwitch, fake_server: FakeServer) -> None:
    servicer = fake_server.servicer
    switch.connect(nothing)
    switch.insert([JOB.group, GROUPED.group])
    assert servicer.groups == {2: [(1, 1), (2, 2)], 3: [(1, 256), (2, 256)]}
    switch.modify([unicast_group(3, MEMBERS)])
    assert servicer.groups == {2: [(1, 1), (2, 2)], 3: [(1, 1), (2, 2)]}
    switch.remove([GROUPED.group])  # as it was inserted
    assert servicer.groups == {2: [(1, 1), (2, 2)]}


def test_modifying_what_is_not_there_is_refused(switch: P4RuntimeSwitch, fake_server: FakeServer) -> None:
    switch.connect(nothing)
    with pytest.raises(SwitchRefusedError, match="1 of 1 writes refused, the first with NOT_FOUND"):
        switch.modify([unicast_group(3, MEMBERS)])
    assert fake_server.servicer.groups == {}


def test_a_job_with_a_group_address_has_one_receiver_more(
    switch: P4RuntimeSwitch, fake_server: FakeServer
) -> None:
    switch.connect(nothing)
    for stage in GROUPED.stages:
        switch.insert(stage)
    receivers = fake_server.servicer.table("InaggEgress.delivery.receiver")
    assert receivers.keys() == {(8, 0), (8, 1), (8, 255)}
    assert receivers[8, 255] == (
        "InaggEgress.delivery.deliver",
        {"mac": 0x01005E400008, "ip": 0xEFC00008, "udp_port": 18753},
    )
    for stage in reversed(GROUPED.stages):
        switch.remove(stage)
    assert (fake_server.servicer.entries, fake_server.servicer.groups) == ({}, {})


def test_counters_are_read_for_the_ports_asked_and_zeroes_left_out(
    switch: P4RuntimeSwitch, fake_server: FakeServer
) -> None:
    switch.connect(nothing)
    fake_server.servicer.counts = {(0x12000001, 2): (3, 300), (0x12000002, 9): (4, 400)}
    assert switch.read_counters([1, 2]) == {
        "started": {2: Count(3, 300)},
        "result_sent": {},
    }
    assert switch.read_counters([1, 2], ["result_sent", "not_there"]).keys() == {"result_sent"}
    assert switch.read_counters([1, 2], ["not_there"]) == {}


def test_a_counter_that_was_added_to_the_program_is_read_by_its_index(
    fake_server: FakeServer, p4info: p4info_pb2.P4Info, program_files: tuple[Path, Path]
) -> None:
    counter = p4info.counters.add(size=64)
    counter.preamble.id, counter.preamble.name = 0x12000077, "InaggIngress.by_rank"
    counter.spec.unit = p4info_pb2.CounterSpec.BOTH
    program_files[0].write_text(text_format.MessageToString(p4info))
    switch = P4RuntimeSwitch(fake_server.address, 1, load_program(*program_files))
    switch.connect(nothing)
    fake_server.servicer.counts = {(0x12000077, 0): (1, 60), (0x12000077, 63): (2, 120)}
    try:
        assert switch.read_counters([1, 255]) == {
            "started": {},
            "result_sent": {},
            "by_rank": {0: Count(1, 60), 63: Count(2, 120)},
        }
    finally:
        switch.close()


def test_admitted_packets_are_told_by_job_and_rank(switch: P4RuntimeSwitch) -> None:
    switch.connect(nothing)
    switch.insert(JOB.admissions)
    assert switch.read_admitted() == {(7, 0): Count(7, 700), (7, 1): Count(7, 700)}


def test_nothing_listening_is_an_error_that_names_the_address(program: Program) -> None:
    with pytest.raises(SwitchUnreachableError, match=r"no switch at 127\.0\.0\.1:1: "):
        P4RuntimeSwitch("127.0.0.1:1", 1, program).connect(nothing)


def test_a_second_controller_is_refused(
    switch: P4RuntimeSwitch, fake_server: FakeServer, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch.connect(nothing)
    second = P4RuntimeSwitch(fake_server.address, 1, program)
    monkeypatch.setattr("inagg_controller.switch.session.ELECTION_ID", (1, 0))
    with pytest.raises(SwitchUnreachableError, match="another controller is in charge"):
        second.connect(nothing)
    switch.insert([arp_entry(1, 2)])


@pytest.fixture
def model_of_device_2(tmp_path: Path) -> Iterator[SwitchServer]:
    server = SwitchServer(Ports([]), device_id=2, address=f"unix:{tmp_path}/p.sock")
    server.start()
    yield server
    server.stop()


def test_another_device_id_is_said_to_be_wrong(
    model_of_device_2: SwitchServer, tmp_path: Path, program: Program
) -> None:
    with pytest.raises(SwitchRefusedError, match="refuses the device id 1: the device is 2, not 1"):
        P4RuntimeSwitch(f"unix:{tmp_path}/p.sock", 1, program).connect(nothing)


def test_a_controller_with_the_same_election_id_is_said_to_be_there(
    model_of_device_2: SwitchServer, tmp_path: Path, program: Program
) -> None:
    address = f"unix:{tmp_path}/p.sock"
    other = Session(2, address)
    try:
        with pytest.raises(
            SwitchTakenError, match="another controller has one: Election id already exists: another live"
        ):
            P4RuntimeSwitch(address, 2, program).connect(nothing)
    finally:
        other.end()


def test_a_switch_that_does_not_answer_is_not_said_to_have_another_device_id(
    model_of_device_2: SwitchServer, tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inagg_controller.switch.session._HANDSHAKE_TIMEOUT_S", 0.2)
    with (
        model_of_device_2._service._state,  # a Write holds it
        pytest.raises(
            SwitchUnreachableError, match=r"did not answer within 0\.2 s: it is still starting, or carries"
        ),
    ):
        P4RuntimeSwitch(f"unix:{tmp_path}/p.sock", 2, program).connect(nothing)


def test_a_switch_that_a_higher_controller_has_left_is_taken_with_a_higher_election_id(
    switch: P4RuntimeSwitch, fake_server: FakeServer
) -> None:
    fake_server.servicer.highest = (1 << 40, 2**64 - 1)
    switch.connect(nothing)
    assert fake_server.servicer.primary == ((1 << 40) + 1, 0)
    switch.insert([arp_entry(1, 2)])


def test_a_switch_that_has_had_the_highest_controller_there_is_says_what_to_do(
    switch: P4RuntimeSwitch, fake_server: FakeServer
) -> None:
    fake_server.servicer.highest = (2**64 - 1, 2**64 - 1)
    with pytest.raises(SwitchUnreachableError, match=r"highest possible election id.*restart the switch"):
        switch.connect(nothing)


def test_another_controller_that_becomes_primary_is_told_at_once(
    switch: P4RuntimeSwitch, fake_server: FakeServer
) -> None:
    lost = Heard()
    switch.connect(lost)
    fake_server.servicer.take_over((1 << 40, 5))
    assert lost.wait(10)
    assert isinstance(lost.error, SwitchTakenError)
    assert str(lost.error).endswith(f"with the election id ({1 << 40}, 5)")
    with pytest.raises(SwitchTakenError):
        switch.insert([arp_entry(1, 2)])


def test_a_call_without_a_connection_is_an_error(switch: P4RuntimeSwitch) -> None:
    with pytest.raises(SwitchUnreachableError, match="not connected"):
        switch.insert([flood_group([1])])


def test_the_end_of_the_connection_is_told_once_it_happens(
    switch: P4RuntimeSwitch, fake_server: FakeServer
) -> None:
    lost = Heard()
    switch.connect(lost)
    fake_server.stop()
    assert lost.wait(10)
    with pytest.raises(SwitchUnreachableError):
        switch.insert([arp_entry(1, 2)])


def test_closing_is_not_reported_as_a_loss(switch: P4RuntimeSwitch) -> None:
    lost = Heard()
    switch.connect(lost)
    before = {thread for thread in threading.enumerate() if thread.name == "inagg-stream"}
    switch.close()
    for thread in before:
        thread.join(10)
    assert not lost.is_set()


def test_a_restarted_switch_can_be_connected_to_and_starts_empty(
    switch: P4RuntimeSwitch, fake_server: FakeServer
) -> None:
    lost = Heard()
    switch.connect(lost)
    switch.insert([arp_entry(1, 2)])
    fake_server.stop()
    assert lost.wait(10)
    fake_server.start()
    switch.connect(nothing)
    assert fake_server.servicer.pushes == 1
    switch.insert([arp_entry(1, 2)])
    assert len(fake_server.servicer.entries) == 1


def test_a_switch_may_be_behind_a_unix_socket(fake_server: FakeServer, program: Program) -> None:
    switch = P4RuntimeSwitch(f"unix:{fake_server.path}", 1, program)
    switch.connect(nothing)
    switch.insert([arp_entry(1, 2)])
    switch.close()
    assert len(fake_server.servicer.entries) == 1
    with pytest.raises(SwitchUnreachableError, match="no switch at unix:/nowhere: No such file"):
        P4RuntimeSwitch("unix:/nowhere", 1, program).connect(nothing)


@pytest.fixture
def other_server(tmp_path: Path) -> Iterator[FakeServer]:
    with FakeServer(tmp_path / "other") as server:
        yield server


@pytest.fixture
def other(other_server: FakeServer, program: Program) -> Iterator[P4RuntimeSwitch]:
    switch = P4RuntimeSwitch(other_server.address, 1, program)
    yield switch
    switch.close()


def test_two_switches_in_one_process_do_not_mix(
    switch: P4RuntimeSwitch, fake_server: FakeServer, other: P4RuntimeSwitch, other_server: FakeServer
) -> None:
    switch.connect(nothing)
    other.connect(nothing)
    switch.insert([flood_group([1, 2])])
    other.insert([flood_group([3])])
    assert fake_server.servicer.groups == {1: [(1, 0), (2, 0)]}
    assert other_server.servicer.groups == {1: [(3, 0)]}


def test_a_read_of_counters_has_a_deadline(
    switch: P4RuntimeSwitch, fake_server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inagg_controller.switch.session._RPC_TIMEOUT_S", 0.2)
    switch.connect(nothing)
    fake_server.servicer.going.clear()
    try:
        with pytest.raises(SwitchUnreachableError, match="DEADLINE_EXCEEDED"):
            switch.read_counters([1])
    finally:
        fake_server.servicer.going.set()


@pytest.mark.parametrize("call", ["insert", "read_counters"])
def test_a_switch_that_stands_still_does_not_hold_up_another(
    switch: P4RuntimeSwitch,
    fake_server: FakeServer,
    other: P4RuntimeSwitch,
    other_server: FakeServer,
    call: str,
) -> None:
    switch.connect(nothing)
    other.connect(nothing)
    fake_server.servicer.going.clear()
    arguments = {"insert": [flood_group([1])], "read_counters": [1]}
    stuck = threading.Thread(target=getattr(switch, call), args=(arguments[call],))
    stuck.start()
    try:
        wait_until(fake_server.servicer.standing.is_set, "the first switch has the call")
        other.insert([flood_group([3])])
        assert other_server.servicer.groups == {1: [(3, 0)]}
        assert other.read_counters([1]) == {"started": {}, "result_sent": {}}
        assert stuck.is_alive()
    finally:
        fake_server.servicer.going.set()
        stuck.join(10)


def test_a_refused_pipeline_is_the_switchs_word_and_leaves_no_connection(
    switch: P4RuntimeSwitch, fake_server: FakeServer
) -> None:
    fake_server.servicer.pipeline_error = "line 3: no such table"
    with pytest.raises(SwitchRefusedError, match="INVALID_ARGUMENT: line 3: no such table"):
        switch.connect(nothing)
    with pytest.raises(SwitchUnreachableError):
        switch.insert([arp_entry(1, 2)])


def test_deleting_a_group_does_not_name_its_replicas(
    switch: P4RuntimeSwitch, fake_server: FakeServer
) -> None:
    switch.connect(nothing)
    switch.insert([JOB.group])
    switch.remove([JOB.group])
    assert fake_server.servicer.writes == [
        (p4runtime_pb2.Update.INSERT, 2),
        (p4runtime_pb2.Update.DELETE, 2),
    ]
