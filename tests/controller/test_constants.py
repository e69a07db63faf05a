# SPDX-License-Identifier: Apache-2.0
"""What the controller had to repeat is what its source says."""

import re
from pathlib import Path

from inagg_controller.cli import AGGREGATOR_UDP_PORT
from inagg_controller.jobs.job import Policy
from inagg_controller.switch.entries import FLOOD_GROUP
from inagg_controller.switch.program import load_program
from inagg_controller.switch.sizes import PACKET_HEADERS_BYTES, WORD_BYTES

ROOT = Path(__file__).parents[2]


def p4_constant(name):
    text = (ROOT / "p4" / "include" / "constants.p4").read_text()
    return int(re.search(rf"const bit<\d+> {name} = (\w+);", text)[1], 0)


def test_constants_that_p4info_does_not_tell_are_those_of_the_p4_source():
    assert p4_constant("INAGG_PORT") == AGGREGATOR_UDP_PORT
    assert p4_constant("FLOOD_GROUP") == FLOOD_GROUP
    headers = ("IPV4_HEADER_BYTES", "UDP_HEADER_BYTES", "INAGG_HEADER_BYTES")
    assert sum(map(p4_constant, headers)) == PACKET_HEADERS_BYTES
    assert p4_constant("WORD_BYTES") == WORD_BYTES


def test_the_default_policy_is_the_protocols():
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
        assert float(re.search(rf"\| {row} \| ([\d.]+) s \|", text)[1]) == value


def test_sizes_are_read_from_p4info(program_files):
    program = load_program(*program_files)
    assert (program.words, program.slot_versions, program.max_workers) == (4, 64, 64)
    assert program.counters == ("started", "result_sent")
