# SPDX-License-Identifier: Apache-2.0
"""Constants that exist twice are equal."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import text_format
from p4.config.v1 import p4info_pb2

from inagg_contract.counters import PORT_COUNTERS
from inagg_controller.jobs.limits import Policy
from inagg_controller.switch.entries import (
    ADMISSION,
    DISPLACEMENT,
    PARENT,
    RECEIVER,
    SERVER,
    SHARING,
    UPLINK,
)
from inagg_controller.switch.program import load_program
from tests import ROOT


def test_constants_are_those_of_the_p4_source(tmp_path: Path) -> None:
    written = tmp_path / "constants.py"
    script = ROOT / "contract" / "generate_constants.py"
    subprocess.run([sys.executable, script, ROOT / "p4/include/constants.p4", written], check=True)
    assert written.read_text() == (ROOT / "contract/inagg_contract/constants.py").read_text()


def test_the_default_policy_is_the_protocols() -> None:
    text = (ROOT / "docs" / "protocol.md").read_text()
    policy = Policy()
    for row, value in {
        "initial RTO": policy.rto_initial_s,
        "minimum margin of the RTO above SRTT": policy.rto_min_s,
        "maximum RTO": policy.rto_max_s,
        "give-up time": policy.give_up_s,
        "heartbeat interval": policy.heartbeat_interval_s,
        "heartbeat timeout": policy.heartbeat_timeout_s,
    }.items():
        found = re.search(rf"\| {row} \| ([\d.]+) s \|", text)
        assert found is not None, row
        assert float(found[1]) == value


def test_sizes_are_read_from_p4info(program_files: tuple[Path, Path]) -> None:
    program = load_program(*program_files)
    assert (program.words, program.slot_versions, program.job_members) == (4, 64, 64)
    assert program.counters == ("started", "result_sent")


def test_the_programs_own_p4info_has_all_that_the_controller_writes() -> None:
    p4info = ROOT / "tests/switch/compiler/inagg.p4info.txtpb"
    program = load_program(p4info, p4info)
    assert set(program.counters) == PORT_COUNTERS
    assert (program.words, program.slot_versions, program.max_above, program.max_shared_jobs) == (
        4,
        16384,
        4096,
        4096,
    )
    assert {"started", "slot_taken", "slot_combined", "no_server"} <= set(program.counters)


@pytest.mark.parametrize(
    ("above", "servers", "sharing", "displacement"), [(6, 8, 3, 9), (8, 6, 4, 7), (6, 6, 3, 6)]
)
def test_table_sizes_bound_what_all_jobs_may_have(
    p4info: p4info_pb2.P4Info,
    program_files: tuple[Path, Path],
    above: int,
    servers: int,
    sharing: int,
    displacement: int,
) -> None:
    sizes = {ADMISSION: 8, RECEIVER: 9, PARENT: 7, UPLINK: above, SERVER: servers, SHARING: sharing}
    sizes[DISPLACEMENT] = displacement  # two entries a job
    for table in p4info.tables:
        table.size = sizes.get(table.preamble.name, table.size)
    program_files[0].write_text(text_format.MessageToString(p4info))
    program = load_program(*program_files)
    # At worst each job has one member at a switch, which takes two receivers.
    assert (program.max_members, program.max_above, program.max_shared_jobs) == (4, 6, 3)
