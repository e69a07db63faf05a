# SPDX-License-Identifier: Apache-2.0
"""The language of simple_switch_CLI: values, matches, handles, and what commands print and change."""

import contextlib
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from p4.v1 import p4runtime_pb2

from inagg_switch import Switch
from inagg_switch.console.interpreter import Interpreter
from inagg_switch.console.server import ConsoleServer
from inagg_switch.console.wire import ask
from inagg_switch.p4runtime.server import ServerError, SwitchServer
from inagg_switch.ports import PortOptions, Ports
from tests.switch.p4runtime.client import Connect
from tests.waiting import wait_until

Run = Callable[..., str]

PROGRAM = """
#include <core.p4>
#include <v1model.p4>

header h_t { bit<48> mac; bit<32> ip; bit<9> port; bit<7> pad; bit<128> six; }
struct headers_t { h_t h; }
struct metadata_t { @field_list(1) bit<8> colour; }

parser P(packet_in packet, out headers_t h, inout metadata_t m, inout standard_metadata_t sm) {
    value_set<bit<16>>(4) known;
    state start { packet.extract(h.h); transition accept; }
}
control V(inout headers_t h, inout metadata_t m) { apply { } }
control I(inout headers_t h, inout metadata_t m, inout standard_metadata_t sm) {
    register<bit<40>>(4) seen;
    counter(4, CounterType.packets_and_bytes) packets;
    meter(4, MeterType.packets) rates;
    direct_counter(CounterType.packets_and_bytes) hits;
    direct_meter<bit<8>>(MeterType.bytes) speed;
    action drop() { mark_to_drop(sm); }
    action forward(bit<48> mac, bit<9> port) { h.h.mac = mac; sm.egress_spec = port; }
    action metered(bit<9> port) { speed.read(m.colour); sm.egress_spec = port; }
    action group(bit<16> id) { sm.mcast_grp = id; }
    table routes {
        key = { h.h.ip: lpm; }
        actions = { forward; drop; NoAction; }
        default_action = NoAction();
        counters = hits;
    }
    table exacts { key = { h.h.mac: exact; h.h.port: exact; } actions = { metered; drop; } meters = speed; }
    table acl {
        key = { h.h.ip: ternary; h.h.port: range; h.h.six: optional; }
        actions = { forward; group; drop; }
        size = 2;
    }
    table fixed { key = { h.h.port: exact; } actions = { drop; } const default_action = drop();
                  const entries = { 5: drop(); } }
    action_selector(HashAlgorithm.crc16, 16, 8) ways;
    table spread {
        key = { h.h.ip: exact; h.h.port: selector; }
        actions = { forward; drop; }
        implementation = ways;
    }
    table aged { key = { h.h.ip: exact; } actions = { drop; } support_timeout = true; }
    apply {
        bit<32> colour;
        routes.apply(); exacts.apply(); acl.apply(); fixed.apply(); spread.apply(); aged.apply();
        rates.execute_meter(0, colour);
        packets.count(1);
        seen.write(2, (bit<40>) h.h.ip);
    }
}
control E(inout headers_t h, inout metadata_t m, inout standard_metadata_t sm) { apply { } }
control U(inout headers_t h, inout metadata_t m) { apply { } }
control D(packet_out packet, in headers_t h) { apply { packet.emit(h); } }
V1Switch(P(), V(), I(), E(), U(), D()) main;
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("console") / "program.p4"
    path.write_text(PROGRAM)
    with Switch.from_p4(path) as switch:
        return switch.source


@pytest.fixture
def server(source: str, tmp_path: object) -> Iterator[SwitchServer]:
    ports = Ports([], PortOptions(priority_queues=4))
    made = SwitchServer(ports, device_id=1, address=f"unix:{tmp_path}/s.sock")
    made.load(Switch.from_source(source))
    made.start()
    yield made
    made.stop()


@pytest.fixture
def run(server: SwitchServer) -> Run:
    """Runs lines, and returns all that they print."""
    interpreter = Interpreter(server, server._ports)
    return lambda *lines: "".join(interpreter.execute(line).text for line in lines)


@contextlib.contextmanager
def listening(server: SwitchServer, address: str = "127.0.0.1:0") -> Iterator[ConsoleServer]:
    """A console that answers."""
    console = ConsoleServer(address, Interpreter(server, server._ports))
    console.start()
    try:
        yield console
    finally:
        console.stop()


ADD = "table_add routes forward 10.0.1.0/24 => 08:00:00:00:01:11 1"


def test_an_entry_gets_a_handle_and_is_shown_as_bmv2_shows_it(run: Run) -> None:
    assert run(ADD) == (
        "Adding entry to lpm match table routes\n"
        "match key:           LPM-0a:00:01:00/24\n"
        "action:              forward\n"
        "runtime data:        08:00:00:00:01:11\t00:01\n"
        "Entry has been added with handle 0\n"
    )
    assert run("table_dump I.routes") == (
        "==========\nTABLE ENTRIES\n**********\n"
        "Dumping entry 0x0\nMatch key:\n* h.h.ip              : LPM       0a000100/24\n"
        "Action entry: I.forward - 080000000111, 0001\n"
        "==========\nDumping default entry\nAction entry: NoAction - \n==========\n"
    )


@pytest.mark.parametrize("value", ["10.0.1.1", "0x0a000101", "167772417", "0b1010000000000000000100000001"])
@pytest.mark.parametrize("mac", ["00:00:00:00:00:0a", "0xa", "10"])
def test_values_are_numbers_or_addresses(run: Run, value: str, mac: str) -> None:
    run(f"table_add routes forward {value}/32 => {mac} 0x1ff")
    dump = run("table_dump routes")
    assert "LPM       0a000101/32" in dump
    assert "I.forward - 00000000000a, 01ff" in dump


def test_bits_outside_a_prefix_or_a_mask_are_ignored(run: Run) -> None:
    assert "LPM-0a:00:01:00/24" in run("table_add routes drop 10.0.1.77/24 =>")
    shown = run(
        "table_add acl drop 10.0.1.77&&&0xffffff00 1->9 ::1&&&0xffffffffffffffffffffffffffffffff => 3"
    )
    assert "TERNARY-0a:00:01:00 &&& ff:ff:ff:00\tRANGE-00:01 -> 00:09\tTERNARY-00:" in shown


def test_a_match_of_everything(run: Run) -> None:
    run("table_add routes drop 0.0.0.0/0 =>", "table_add acl drop 0&&&0 0->511 0&&&0 => 0")
    assert "LPM       00000000/0" in run("table_dump routes")
    dump = run("table_dump acl")
    assert "TERNARY   00000000 &&& 00000000" in dump
    assert "RANGE     0000 -> 01ff" in dump


def test_the_lowest_priority_wins_as_in_bmv2(run: Run, server: SwitchServer) -> None:
    run("table_add acl group 0&&&0 0->511 0&&&0 => 7 20", "table_add acl drop 0&&&0 0->511 0&&&0 => 10")
    dump = run("table_dump acl")
    assert dump.index("Priority: 20") < dump.index("Priority: 10")  # in the order of handles
    with server.exclusive() as target:
        entries = target.control.table_entries(table_id(server, "I.acl"), [4, 2, 16])
    names = {target.names.action(entry[2]).name: entry[1] for entry in entries}
    assert names == {"I.group": 2**31 - 21, "I.drop": 2**31 - 11}  # P4Runtime's highest wins


def table_id(server: SwitchServer, name: str) -> int:
    running = server.running
    assert running is not None
    return next(table.id for table in running.names.tables.values() if table.name == name)


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("table_add nothere drop 1/32 =>", "Error: Invalid table name (nothere)"),
        ("table_add routes nothere 1/32 =>", "Error: Table I.routes has no action nothere"),
        ("table_add routes group 1/32 => 1", "Error: Table I.routes has no action group"),
        ("table_add routes drop", "Error: Insufficient number of args"),
        ("table_add exacts metered 1 => 1", "Error: Table I.exacts needs 2 key fields"),
        ("table_add routes forward 1/32 => 1", "Error: Action forward needs 2 parameters"),
        (
            "table_add routes drop 10.0.1/32 =>",
            "Invalid match key: Error while parsing 10.0.1/32 - Invalid IPv4",
        ),
        ("table_add routes drop 10.0.1.1 =>", "Invalid match key: Error while parsing 10.0.1.1 - use '/'"),
        ("table_add routes drop 10.0.1.1/33 =>", "Invalid match key"),
        ("table_add routes drop x/8 =>", "Invalid match key: Error while parsing x/8 - Invalid input"),
        (
            "table_add routes drop -1/8 =>",
            "Invalid match key: Error while parsing -1/8 - Parameter is negative",
        ),
        (
            "table_add exacts drop 00:00:00:00:00 1 =>",
            "Invalid match key: Error while parsing 00:00:00:00:00 - In",
        ),
        (
            "table_add exacts drop 1 512 =>",
            "Invalid match key: Error while parsing 512 - Parameter is too large",
        ),
        (
            "table_add routes forward 1/32 => 1 512",
            "Invalid runtime data: Error while parsing 512 - Parameter is",
        ),
        ("table_add acl drop 1&&&1 9->1 0&&&0 => 1", "Invalid match key: Error while parsing 9->1"),
        (
            "table_add acl drop 1&&&1 1->9 1&&&1 => 1",
            "Invalid match key: Error while parsing 1&&&1 - the match kind",
        ),
        (
            "table_add acl drop 1&&&1 1->9 0&&&0 => x",
            "Error: Table is ternary, but could not extract a valid pri",
        ),
        ("table_add fixed drop 1 =>", "Invalid table operation (IMMUTABLE_TABLE_ENTRIES)"),
        ("table_set_default fixed drop", "Invalid table operation (IMMUTABLE_TABLE_ENTRIES)"),
        ("table_delete routes 7", "Invalid table operation (INVALID_HANDLE)"),
        ("table_delete routes x", "Error: Bad format for entry handle, expected integer"),
        ("table_modify routes drop 7", "Invalid table operation (INVALID_HANDLE)"),
        ("table_set_timeout routes 0 10", "Error: Table routes does not support entry timeouts"),
        ("register_read seen 4", "Invalid register operation (INVALID_INDEX)"),
        ("register_write seen 0 1099511627776", "Error: the value does not fit into 40 bits"),
        ("counter_read packets 4", "Invalid counter operation (INVALID_INDEX)"),
        ("meter_set_rates rates 0 0.5:1", "Error: Invalid number of rates, expected 2 but got 1"),
        ("meter_set_rates rates 0 x:1 1:1", "Error: Error while parsing rates"),
        ("meter_set_rates rates 0 nan:1 1:1", "Error: Error while parsing rates"),
        ("mc_node_associate 1 0", "Invalid PRE operation (INVALID_MGID)"),
        ("mc_node_create 0 1 1", "Error: Found duplicate port number '1'"),
        ("mc_node_create 0 1 | 2", "Error: this switch has no LAGs"),
        ("mirroring_add 0 1", "Error: clone session 0"),
        ("mirroring_get 5", "Invalid mirroring operation (SESSION_NOT_FOUND)"),
        ("act_prof_create_group nothere", "Error: Invalid action profile name (nothere)"),
        ("table_indirect_add routes 1/32 => 0", "Error: Cannot run this command on non-indirect table"),
        ("set_queue_rate 100 1", "Error: there is no port 1"),
        ("port_add veth1 1", "Error: port_add: ports are given when the switch starts"),
        ("nonsense 1 2", "*** Unknown syntax: nonsense 1 2"),
        ("help nonsense", "*** No help on nonsense"),
        ("show_tables x", "Error: Wrong number of args, expected 0 but got 1"),
        (f"register_read seen {10**22}", "Error: index is at most 2147483647"),
        (f"register_read seen {'9' * 5000}", "Error: index is at most 2147483647"),
        (f"register_write seen {10**20} 1", "Error: index is at most 2147483647"),
        (f"mc_mgrp_create {10**11}", "Error: multicast group id is at most 2147483647"),
        (f"mirroring_add {10**11} 1", "Error: mirror_id is at most 2147483647"),
        ("mc_node_create 70000 1", "Error: rid is at most 65535"),
        ("mc_node_create 1 100000000", "Error: port is at most 510"),
        (f"set_queue_depth {10**22} 1", "is at most 2147483647"),
        (f"table_delete routes {10**22}", "Error: entry handle is at most 2147483647"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_changes(run: Run, line: str, answer: str) -> None:
    before = run(*(f"table_dump {name}" for name in ("routes", "exacts", "acl", "fixed")), "mc_dump")
    assert answer in run(line).splitlines()[-1]
    assert run(*(f"table_dump {name}" for name in ("routes", "exacts", "acl", "fixed")), "mc_dump") == before


def test_an_entry_twice_and_a_full_table(run: Run) -> None:
    assert "(DUPLICATE_ENTRY)" in run(ADD, ADD)
    lines = [f"table_add acl drop {n}&&&0xff 0->511 0&&&0 => 1" for n in range(3)]
    assert "(TABLE_FULL)" in run(*lines)
    assert run("table_num_entries acl") == "2\n"


@pytest.mark.parametrize("line", ["", "   ", "# table_clear routes", "// comment", "#table_clear routes"])
def test_empty_lines_and_comments_do_nothing(run: Run, line: str) -> None:
    run(ADD)
    assert run(line) == ""
    assert run("table_num_entries routes") == "1\n"


def test_entries_are_changed_by_their_handles(run: Run) -> None:
    run(ADD, "table_add routes drop 10.0.2.0/24 =>")
    assert run("table_modify routes forward 1 => 00:00:00:00:00:07 2").startswith("Modifying entry 1 for lpm")
    assert "I.forward - 000000000007, 0002" in run("table_dump_entry routes 1")
    assert run("table_delete routes 0") == "Deleting entry 0 from routes\n"
    assert "Dumping entry 0x1\n" in run("table_dump_entry_from_key routes 10.0.2.0/24")
    assert run("table_dump_entry_from_key routes 10.0.1.0/24") == "Invalid table operation (BAD_MATCH_KEY)\n"
    assert run(ADD).endswith("handle 2\n")  # handles are not used again
    run("table_clear routes")
    assert run("table_num_entries routes") == "0\n"


def test_default_actions(run: Run) -> None:
    run("table_set_default routes forward 00:00:00:00:00:01 => 3", "table_set_default acl drop")
    assert "Action entry: I.forward - 000000000001, 0003" in run("table_dump routes")
    run("table_reset_default routes")
    assert "Action entry: NoAction - " in run("table_dump routes")


def test_entries_of_p4runtime_get_handles_too(run: Run, server: SwitchServer) -> None:
    with server.exclusive() as target:
        drop = next(action.id for action in target.names.actions.values() if action.name == "I.drop")
        key = [(bytes(6), None, 0), (b"\0\1", None, 0)]
        target.control.table_insert(table_id(server, "I.exacts"), key, 0, drop, b"")
    assert "Dumping entry 0x0\n" in run("table_dump exacts")
    run("table_delete exacts 0")
    assert run("table_num_entries exacts") == "0\n"


def test_a_p4runtime_controller_stays_primary(
    server: SwitchServer, run: Run, connect: Connect, tmp_path: object
) -> None:
    controller = connect(f"unix:{tmp_path}/s.sock")
    controller.arbitrate()
    controller.next()
    run(ADD)
    wanted = p4runtime_pb2.Entity()
    wanted.table_entry.table_id = table_id(server, "I.routes")
    (found,) = controller.read(wanted)
    assert [param.value for param in found.table_entry.action.action.params] == [
        b"\x08\0\0\0\x01\x11",
        b"\x01",
    ]
    found.table_entry.action.action.params[1].value = b"\x02"
    controller.write(p4runtime_pb2.Update(type=p4runtime_pb2.Update.MODIFY, entity=found))
    assert "080000000111, 0002" in run("table_dump routes")


def test_registers(run: Run) -> None:
    assert run("register_write seen 1 0x10", "register_read seen 1") == "seen[1]= 16\n"
    assert run("register_read I.seen") == "I.seen= 0, 16, 0, 0\n"
    assert run("register_reset seen", "register_read seen 1") == "seen[1]= 0\n"


def test_counters(run: Run) -> None:
    assert run("counter_write packets 1 3 100") == "packets[1] has been updated\n"
    assert run("counter_read packets 1") == "packets[1]= (100 bytes, 3 packets)\n"
    assert run("counter_reset packets", "counter_read packets 1") == "packets[1]= (0 bytes, 0 packets)\n"


def test_direct_counters_count_by_handle(run: Run) -> None:
    run(ADD)
    run("counter_write hits 0 2 50")
    assert run("counter_read hits 0").splitlines() == [
        "this is the direct counter for table I.routes",
        "hits[0]= (50 bytes, 2 packets)",
    ]
    run("counter_reset hits")
    assert "(0 bytes, 0 packets)" in run("counter_read hits 0")


def test_rates_of_meters_are_units_a_microsecond(run: Run) -> None:
    assert run("meter_get_rates rates 0") == "WARNING: expected 2 rates but only received 0\n"
    run("meter_array_set_rates rates 0.0001:1 0.0005:2", "meter_set_rates rates 3 1:10 2:20")
    assert run("meter_get_rates rates 0").splitlines() == [
        "0: info rate = 0.0001, burst size = 1",
        "1: info rate = 0.0005, burst size = 2",
    ]
    assert "1: info rate = 2.0, burst size = 20" in run("meter_get_rates rates 3")


def test_direct_meters_by_handle(run: Run) -> None:
    run("table_add exacts metered 1 1 => 1", "meter_set_rates speed 0 0.5:1 1:2")
    assert "0: info rate = 0.5, burst size = 1" in run("meter_get_rates speed 0")


def test_multicast_groups_consist_of_nodes(run: Run, server: SwitchServer) -> None:
    assert run("mc_mgrp_create 1", "mc_node_create 7 3 1", "mc_node_create 8 2") == (
        "Creating multicast group 1\n"
        "Creating node with rid 7 , port map 1010 and lag map \nnode was created with handle 0\n"
        "Creating node with rid 8 , port map 100 and lag map \nnode was created with handle 1\n"
    )
    run("mc_node_associate 1 0", "mc_node_associate 1 1")
    nodes = "  -> (L1h=0, rid=7) -> (ports=[1, 3], lags=[])\n  -> (L1h=1, rid=8) -> (ports=[2], lags=[])\n"
    assert f"mgrp(1)\n{nodes}" in run("mc_dump")
    assert replicas(server, 1) == [(1, 7), (3, 7), (2, 8)]
    run("mc_node_update 0 4", "mc_node_dissociate 1 1")
    assert replicas(server, 1) == [(4, 7)]
    run("mc_node_destroy 0")
    assert replicas(server, 1) == []
    run("mc_mgrp_destroy 1")
    assert "mgrp" not in run("mc_dump")


def replicas(server: SwitchServer, group: int) -> list[tuple[int, int]]:
    assert server.running is not None
    return [(one.egress_port, one.instance) for one in server.running.groups[group].replicas]


def test_clone_sessions_follow_their_group(run: Run, server: SwitchServer) -> None:
    run("mirroring_add 5 3")
    assert run("mirroring_get 5") == "MirroringSessionConfig(port=3, mgid=None)\n"
    run("mc_mgrp_create 1", "mc_node_create 0 1 2", "mirroring_add_mc 5 1", "mc_node_associate 1 0")
    assert server.running is not None
    assert [one.egress_port for one in server.running.sessions[5].replicas] == [1, 2]
    assert run("mirroring_get 5") == "MirroringSessionConfig(port=None, mgid=1)\n"
    run("mirroring_delete 5")
    assert 5 not in server.running.sessions


def test_members_and_groups_of_an_action_profile(run: Run) -> None:
    assert run("act_prof_create_member ways forward 1 2") == "Member has been created with handle 0\n"
    run("act_prof_create_member ways drop", "act_prof_modify_member ways drop 0")
    assert run("act_prof_create_group ways") == "Group has been created with handle 0\n"
    run("act_prof_add_member_to_group ways 0 0", "act_prof_add_member_to_group ways 1 0")
    assert "Members: [0, 1]\n" in run("act_prof_dump_group ways 0")
    run("act_prof_remove_member_from_group ways 0 0")
    run("table_indirect_add_with_group spread 10.0.0.1 => 0", "table_indirect_add spread 10.0.0.2 => 1")
    dump = run("table_dump spread")
    assert "Index: group(0)\n" in dump
    assert "Index: member(1)\n" in dump
    assert "MEMBERS\n**********\nDumping member 0\nAction entry: I.drop - \n" in dump
    assert "(STILL_USED)" in run("act_prof_delete_member ways 1")
    run("table_indirect_delete spread 0", "act_prof_delete_group ways 0", "act_prof_delete_member ways 0")
    assert "Dumping member 0" not in run("act_prof_dump ways")


def test_value_sets(run: Run) -> None:
    run("pvs_add known 0x800", "pvs_add known 2048", "pvs_add known 7")
    assert run("pvs_get known") == "0800\n0007\n"
    run("pvs_remove known 7")
    assert run("pvs_get known") == "0800\n"
    assert run("pvs_clear known", "pvs_get known") == ""
    assert "bitwidth:16]" in run("show_pvs")


def test_timeouts_are_milliseconds(run: Run) -> None:
    run("table_add aged drop 10.0.0.1 =>", "table_set_timeout aged 0 5000")
    assert "timeout is 5000ms\n" in run("table_dump aged")


def test_reset_state_begins_again(run: Run) -> None:
    run(ADD, "register_write seen 0 5", "mc_mgrp_create 1", "reset_state")
    assert run("table_num_entries routes", "register_read seen 0") == "0\nseen[0]= 0\n"
    assert run(ADD).endswith("handle 0\n")
    assert run("mc_mgrp_create 1") == "Creating multicast group 1\n"


def test_descriptions(run: Run) -> None:
    assert (
        "I.exacts                       [implementation=None, mk=h.h.mac(exact, 48),\th.h.port(exact, 9)]"
        in run("show_tables")
    )
    assert "I.forward                      [mac(48),\tport(9)]\n" in run("show_actions")
    assert run("table_info fixed").endswith("*" * 80 + "\nI.drop                         []\n")
    assert run("help table_add").startswith("Add entry to a match table: table_add <table name>")
    assert "  table_add\n" in run("help")


def test_without_a_program(tmp_path: object) -> None:
    server = SwitchServer(Ports([]), device_id=1, address=f"unix:{tmp_path}/empty.sock")
    try:
        answer = Interpreter(server, server._ports).execute("show_tables")
        assert answer.text == "Error: no program is running: set a pipeline config first\n"
    finally:
        server.stop()


@pytest.mark.parametrize(
    "sent",
    [
        # bm_mgmt_get_info() of Thrift's binary protocol
        b"\x80\x01\x00\x01\x00\x00\x00\x19standard:bm_mgmt_get_info\x00\x00\x00\x00\x00",
        b"{}\n",
        b'"unfinished\n',
        b"table_dump routes\n",
    ],
)
def test_a_client_that_speaks_something_else_is_disconnected(
    server: SwitchServer, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with listening(server) as console:
        with socket.create_connection(("127.0.0.1", console.port), timeout=10) as connection:
            connection.sendall(sent)
            assert connection.recv(100) == b""
        assert "speaks something else, such as Thrift" in caplog.text
        with socket.create_connection(("127.0.0.1", console.port), timeout=10) as connection:
            stream = connection.makefile("rwb")
            assert ask(stream, "table_num_entries routes").text == "0\n"
            stream.close()


def test_clients_beyond_the_limit_are_disconnected_and_others_are_answered(
    server: SwitchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inagg_switch.console.server.MAX_CLIENTS", 2)
    with listening(server) as console, contextlib.ExitStack() as stack:
        first, second = (
            stack.enter_context(socket.create_connection(("127.0.0.1", console.port), timeout=10))
            for _ in range(2)
        )
        for connection in (first, second):
            with connection.makefile("rwb") as stream:
                assert ask(stream, "table_num_entries routes").text == "0\n"
        with socket.create_connection(("127.0.0.1", console.port), timeout=10) as third:
            assert third.recv(100) == b""
        first.close()

        def answered() -> bool:
            with (
                suppress(OSError),
                socket.create_connection(("127.0.0.1", console.port), timeout=10) as another,
                another.makefile("rwb") as stream,
            ):
                return ask(stream, "table_num_entries routes").text == "0\n"
            return False

        wait_until(answered, "the place of the first is free")


def test_a_command_that_waits_is_not_carried_out_without_its_client(server: SwitchServer) -> None:
    with listening(server) as console:
        connections = console._server._since
        with server.exclusive():  # a Write holds it
            with socket.create_connection(("127.0.0.1", console.port), timeout=10) as gone:
                gone.sendall(f'"{ADD}"\n'.encode())
                wait_until(lambda: len(connections) == 1, "the client to be served")
            wait_until(lambda: not connections, "its place to be free")
        with (
            socket.create_connection(("127.0.0.1", console.port), timeout=10) as connection,
            connection.makefile("rwb") as stream,
        ):
            assert ask(stream, "table_num_entries routes").text == "0\n"


def test_a_client_that_sends_no_more_gets_its_answers(server: SwitchServer) -> None:
    """As `nc -N` does."""
    console = ConsoleServer("127.0.0.1:0", Interpreter(server, server._ports))
    try:
        with (
            socket.create_connection(("127.0.0.1", console.port), timeout=10) as connection,
            connection.makefile("rb") as answers,
        ):
            connection.sendall(f'"{ADD}"\n"table_num_entries routes"\n'.encode())
            connection.shutdown(socket.SHUT_WR)
            console.start()
            texts = [json.loads(answer)["text"] for answer in answers]
        assert texts[0].endswith("Entry has been added with handle 0\n")
        assert texts[1:] == ["1\n"]
    finally:
        console.stop()


def test_a_client_that_does_not_read_its_answer_is_disconnected(
    server: SwitchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inagg_switch.console.server.PATIENCE_S", 1)
    with listening(server) as console:
        connections = console._server._since
        with socket.create_connection(("127.0.0.1", console.port), timeout=10) as deaf:
            with suppress(OSError):  # once it is disconnected
                for _ in range(20):  # each is answered with the line
                    deaf.sendall(f'"{"x" * 900_000}"\n'.encode())
            wait_until(lambda: not connections, "its place to be free", 30)


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:  # as in many containers
        return False
    return True


@pytest.mark.skipif(not _has_ipv6(), reason="the loopback interface has no IPv6 address")
def test_the_console_may_listen_at_an_ipv6_address(server: SwitchServer) -> None:
    with (
        listening(server, "[::1]:0") as console,
        socket.create_connection(("::1", console.port), timeout=10) as connection,
        connection.makefile("rwb") as stream,
    ):
        assert ask(stream, "table_num_entries routes").text == "0\n"


def test_a_port_that_is_taken_is_explained(server: SwitchServer) -> None:
    interpreter = Interpreter(server, server._ports)
    first = ConsoleServer("127.0.0.1:0", interpreter)
    try:
        with pytest.raises(ServerError, match=f"cannot serve the console at 127.0.0.1:{first.port}"):
            ConsoleServer(f"127.0.0.1:{first.port}", interpreter)
    finally:
        first.stop()
