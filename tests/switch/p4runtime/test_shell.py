# SPDX-License-Identifier: Apache-2.0
"""p4runtime-shell 0.0.6, unmodified, drives the switch with p4/inagg.p4."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import p4runtime_sh.shell as sh
import pytest
from google.protobuf import text_format
from IPython.core.inputtransformer2 import TransformerManager
from p4runtime_sh.p4runtime import P4RuntimeClient, P4RuntimeException, P4RuntimeWriteException

from inagg_switch.cli.shell import _statements
from inagg_switch.switch import Switch
from tests import INAGG_P4

ADMISSION = "InaggIngress.admission.admission"
ARP = "InaggIngress.arp_responder.arp_responder"


@pytest.fixture(scope="session")
def config(tmp_path_factory: pytest.TempPathFactory) -> sh.FwdPipeConfig:
    """What `inagg-switch compile` writes."""
    folder = tmp_path_factory.mktemp("config")
    program = Switch.from_p4(INAGG_P4)
    (folder / "p4info.txtpb").write_text(text_format.MessageToString(program.p4info))
    (folder / "inagg.p4").write_text(program.source)
    return sh.FwdPipeConfig(str(folder / "p4info.txtpb"), str(folder / "inagg.p4"))


@pytest.fixture
def address(p4runtime_server: Callable[[], str]) -> str:
    return p4runtime_server()


@pytest.fixture
def shell(address: str, config: sh.FwdPipeConfig) -> Iterator[ModuleType]:
    sh.setup(device_id=1, grpc_addr=address, election_id=(0, 1), config=config, verbose=False)
    yield sh
    sh.teardown()


def name_of(kind: sh.P4Type, short: str) -> str:
    """The full name of an object, by its last part."""
    names: list[str] = [name for name, _ in sh.context.get_objs(kind) if name.split(".")[-1] == short]
    (name,) = names
    return name


def action(short: str) -> str:
    return name_of(sh.P4Type.action, short)


def admission(rank: int) -> sh.TableEntry:
    entry = sh.TableEntry(ADMISSION)(action=action("admit"))
    entry.match.set(port="1", source="10.0.0.1", job="1", rank=str(rank))
    entry.action.set(
        member=str(1 << rank),
        all="0xf",
        slot_base="0",
        slot_mask="127",
        epoch="7",
        result_group="2",
        parents="0",
        first_chunk="0",
        run_bits="0",
    )
    return entry


def arp(mac: str = "02:49:41:00:00:01") -> sh.TableEntry:
    entry = sh.TableEntry(ARP)(action=action("answer"))
    entry.match["ip"] = "10.0.0.253"
    entry.action["mac"] = mac
    return entry


def test_table_entries(shell: ModuleType) -> None:
    arp().insert()
    (read,) = shell.TableEntry(ARP).read()
    assert str(read) == str(arp())
    arp("02:00:00:00:00:99").modify()
    (read,) = shell.TableEntry(ARP).read()
    assert read.action["mac"].value == b"\x02\x00\x00\x00\x00\x99"
    arp().delete()
    assert list(shell.TableEntry(ARP).read()) == []


def test_deleting_what_is_read_empties_a_table(shell: ModuleType) -> None:
    for rank in range(4):
        admission(rank).insert()
    shell.TableEntry(ADMISSION).read(lambda entry: entry.delete())
    assert list(shell.TableEntry(ADMISSION).read()) == []


def test_a_refused_write_names_the_reason_and_changes_nothing(shell: ModuleType) -> None:
    arp().insert()
    with pytest.raises(P4RuntimeWriteException, match="ALREADY_EXISTS"):
        arp("02:00:00:00:00:99").insert()
    (read,) = shell.TableEntry(ARP).read()
    assert str(read) == str(arp())
    entry = arp()
    entry.action = sh.Action(action("answer"))
    with pytest.raises(P4RuntimeWriteException, match=r"INVALID_ARGUMENT.*parameter mac is missing"):
        entry.modify()


def test_default_entries_are_read(shell: ModuleType) -> None:
    entry = shell.TableEntry(ADMISSION)
    entry.is_default = True
    (read,) = entry.read()
    assert read.action.action_name == action("refuse")
    read.action = sh.Action(action("refuse"))
    with pytest.raises(P4RuntimeWriteException, match="PERMISSION_DENIED"):
        read.modify()


def test_direct_counters(shell: ModuleType) -> None:
    admission(0).insert()
    admission(1).insert()
    direct = shell.DirectCounterEntry(name_of(sh.P4Type.direct_counter, "admitted"))
    assert len(list(direct.read())) == 2
    direct.table_entry = admission(1)
    direct.packet_count, direct.byte_count = 3, 1000
    direct.modify()
    (read,) = direct.read()
    assert (read.packet_count, read.byte_count) == (3, 1000)
    entry = admission(1)
    assert entry.counter_data.packet_count == 0  # asking for it makes the read ask for it
    (read,) = entry.read()
    assert read.counter_data.packet_count == 3


def test_counters(shell: ModuleType) -> None:
    name = name_of(sh.P4Type.counter, "completed")
    entry = shell.CounterEntry(name)
    entry.index = 5
    entry.packet_count, entry.byte_count = 3, 300
    entry.modify()
    (read,) = entry.read()
    assert (read.packet_count, read.byte_count) == (3, 300)
    everything = list(shell.CounterEntry(name).read())
    assert len(everything) == 512
    assert sum(one.packet_count for one in everything) == 3
    entry.index = 512
    with pytest.raises(P4RuntimeWriteException, match="OUT_OF_RANGE"):
        entry.modify()
    with pytest.raises(P4RuntimeException):
        list(entry.read())


def test_multicast_groups(shell: ModuleType) -> None:
    shell.MulticastGroupEntry(1).add(1, 0).add(2, 0).add(255, 0).insert()
    shell.MulticastGroupEntry(2).add(1, 1).add(2, 2).insert()
    read = {
        one.group_id: [(r.egress_port, r.instance) for r in one.replicas]
        for one in sh.MulticastGroupEntry().read()
    }
    assert read == {1: [(1, 0), (2, 0), (255, 0)], 2: [(1, 1), (2, 2)]}
    shell.MulticastGroupEntry(2).add(1, 1).modify()
    (read_one,) = shell.MulticastGroupEntry(2).read()
    assert len(read_one.replicas) == 1
    shell.MulticastGroupEntry(2).delete()
    assert [one.group_id for one in shell.MulticastGroupEntry().read()] == [1]


def test_a_batch(shell: ModuleType) -> None:
    request = sh.p4runtime_pb2.WriteRequest()
    for rank in range(4):
        update = request.updates.add(type=sh.p4runtime_pb2.Update.INSERT)
        update.entity.table_entry.CopyFrom(admission(rank).msg())
    sh.client.write(request)
    assert len(list(shell.TableEntry(ADMISSION).read())) == 4
    # All fail here: on a batch that fails in part, the shell's own error iterator never ends.
    with pytest.raises(P4RuntimeWriteException) as caught:
        sh.client.write(request)
    assert [(index, error.canonical_code) for index, error in caught.value.errors] == [
        (n, 6) for n in range(4)
    ]


def test_state_survives_a_reconnection(address: str, config: sh.FwdPipeConfig) -> None:
    sh.setup(device_id=1, grpc_addr=address, election_id=(0, 1), config=config, verbose=False)
    arp().insert()
    sh.teardown()
    sh.setup(device_id=1, grpc_addr=address, election_id=(0, 1), verbose=False)
    assert len(list(sh.TableEntry(ARP).read())) == 1
    sh.teardown()


def test_a_second_controller_with_a_lower_id_only_reads(
    shell: ModuleType, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arp().insert()
    second = P4RuntimeClient(1, address, (0, 0))
    assert "not the primary client" in capsys.readouterr().out
    assert second.get_p4info() == sh.client.get_p4info()
    update = sh.p4runtime_pb2.Update(type=sh.p4runtime_pb2.Update.DELETE)
    update.entity.table_entry.CopyFrom(arp().msg())
    with pytest.raises(Exception, match="only the primary"):
        second.write_update(update)
    second.tear_down()
    assert len(list(shell.TableEntry(ARP).read())) == 1


def test_a_second_controller_with_a_higher_id_takes_over(
    shell: ModuleType, address: str, config: sh.FwdPipeConfig
) -> None:
    second = P4RuntimeClient(1, address, (1, 0))
    with pytest.raises(Exception, match="only the primary"):
        arp().insert()
    second.set_fwd_pipe_config(config.p4info, config.bin)
    second.tear_down()


def test_the_api_version(shell: ModuleType) -> None:
    assert sh.APIVersion() == "1.4.1"


RunFile = Callable[[str], subprocess.CompletedProcess[str]]


@pytest.fixture
def run_file(address: str, config: sh.FwdPipeConfig, switch_command: list[str], tmp_path: Path) -> RunFile:
    """Runs a file of commands."""
    options = [
        "--grpc-addr",
        address,
        "--device-id",
        "1",
        "--election-id",
        "0,1",
        "--config",
        ",".join(config),
    ]
    return lambda commands: subprocess.run(
        [*switch_command, "shell", *options],
        input=commands,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "HOME": str(tmp_path)},
        check=False,
    )


def test_a_file_of_commands_gets_plain_text_and_a_line_for_each_failure(run_file: RunFile) -> None:
    commands = [
        f'entry = table_entry["{ARP}"](action="InaggIngress.arp_responder.answer")',
        'entry.match.set(ip="10.0.0.253"); entry.action.set(mac="02:49:41:00:00:01")',
        "entry.insert()",
        "entry.insert()",
        "for number in range(2):",
        "    try:",
        "        print(number)",
        "",
        "    finally:",
        "        print(-number)",
        "else:",
        "    print('for')",
        'table_entry["nosuch"]',
        "1 = 2",
        'register_entry["slot_epoch"](index=3).read(print)',
        "exit()",
        "print('not reached')",
    ]
    done = run_file("\n".join(commands) + "\n")
    assert done.returncode == 1
    assert "\x1b" not in done.stdout
    assert done.stdout.endswith("\n0\n0\n1\n-1\nfor\nInaggIngress.slot_epoch[3] = 0 (0x0)\n")
    reports = [line.partition(": ") for line in done.stderr.splitlines()]
    assert [kind for kind, *_ in reports] == ["P4RuntimeWriteException", "UserError", "SyntaxError"]
    assert "ALREADY_EXISTS" in reports[0][2]
    assert reports[1][2] == "table 'nosuch' does not exist"


STATEMENTS = [
    "if lines:\n    admit()\n# a comment\nelse:\n    refuse()\n",
    "if lines: admit()\n\n# a comment\nelse: refuse()\n",
    "@decorated\n# a comment\ndef f():\n    admit()\n# a comment\n\n    refuse()\n",
    "match lines:\n    case 1:\n        admit()\n# a comment\n    case 2:\n        refuse()\n",
    "try:\n    admit()\n# a comment\nexcept Error:\n    refuse()\n# another\nfinally:\n    close()\n",
    "text = '''\n# no comment\nadmit()\n'''\n",
    "number = 1 + \\\n2\n",
    "admit(\n1,\n# a comment\n2)\n",
    "if lines:\n    !date\n    %time admit()\n# a comment\nelse:\n    !date\n",
    "!date\n",
    "admit()\n",
]


def test_a_file_is_split_where_statements_end() -> None:
    lines = "".join(STATEMENTS).splitlines(keepends=True)
    assert list(_statements(lines, TransformerManager().transform_cell)) == STATEMENTS


def test_a_block_whose_condition_has_failed_is_not_run(run_file: RunFile) -> None:
    done = run_file("if 1 > 0\n    print('not reached')\n    print('either')\nprint('end')\n")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "end"
    assert "reached" not in done.stdout
    assert "either" not in done.stdout
    assert [line.partition(": ")[0] for line in done.stderr.splitlines()] == [
        "SyntaxError",
        "IndentationError",
    ]


CTRL_C = (
    "import os, signal; "
    "signal.signal(signal.SIGINT, signal.default_int_handler); "  # which a shell's background jobs lack
    "os.kill(os.getpid(), signal.SIGINT)"
)


@pytest.mark.parametrize(
    ("command", "status", "reason"),
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit(0)", 0, ""),
        ("import sys; sys.exit('no switch')", 1, "no switch\n"),
        ("exit(3)", 3, ""),
        ("quit", 1, ""),  # because a command has failed
        (CTRL_C, 130, ""),
    ],
)
def test_a_file_of_commands_may_end_early(run_file: RunFile, command: str, status: int, reason: str) -> None:
    done = run_file(f"1 / 0\nprint('begin')\n{command}\nprint('not reached')\n")
    assert (done.returncode, done.stderr) == (status, f"ZeroDivisionError: division by zero\n{reason}")
    assert done.stdout == "begin\n"


@pytest.mark.usefixtures("shell")
def test_on_a_terminal_the_shell_has_prompts_and_colours(
    address: str, switch_command: list[str], tmp_path: Path
) -> None:
    end, terminal = os.openpty()
    options = ["--grpc-addr", address, "--device-id", "1", "--election-id", "0,2"]
    with subprocess.Popen(
        [*switch_command, "shell", *options],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env={**os.environ, "HOME": str(tmp_path), "TERM": "xterm"},
        start_new_session=True,
    ) as process:
        os.close(terminal)
        shown = b""
        while b"P4Runtime sh" not in shown:
            shown += os.read(end, 4096)
        process.kill()
    os.close(end)
    assert b"\x1b[" in shown
