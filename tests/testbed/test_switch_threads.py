# SPDX-License-Identifier: Apache-2.0
"""A testbed whose switches have several threads, among which they divide the packets of a job."""

import json
from pathlib import Path

import pytest

from inagg_testbed.bench.allreduce import AllReduceBench, measure
from inagg_testbed.bench.plan import Case
from inagg_testbed.errors import ProcessFailedError
from inagg_testbed.network.fabric import Fabric
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.switch_options import SwitchOptions
from inagg_testbed.network.testbed import open_testbed

pytestmark = pytest.mark.netns
THREADS = 4
UNSHAPED = LinkSpec.parse("unshaped")
# For one thread: it does not say which packets belong together.
PLAIN = """
#include <core.p4>
#include <v1model.p4>
struct headers_t { }
struct metadata_t { }
parser P(packet_in p, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    state start { transition accept; }
}
control V(inout headers_t h, inout metadata_t m) { apply { } }
control I(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) { apply { s.egress_spec = 1; } }
control E(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) { apply { } }
control D(packet_out p, in headers_t h) { apply { } }
V1Switch(P(), V(), I(), E(), V(), D()) main;
"""


@pytest.mark.parametrize("topology", ["star", "tree:2x2"])
def test_ranks_learn_the_threads_and_no_packet_seems_lost(tmp_path: Path, topology: str) -> None:
    """Threads overtake one another all the time here: there are more than processors."""
    case = Case(
        workers=4, elements=1_000_000, backends=("inagg:32", "inagg-shared:32"), iterations=3, warmup=1
    )
    bench = AllReduceBench(link_name="unshaped", link=UNSHAPED, topology=topology, cases=(case,))
    with open_testbed(
        fabric=Fabric.parse(topology, hosts=4),
        link=UNSHAPED,
        results_root=tmp_path,
        state_dir=tmp_path / "state",
        switch_options=SwitchOptions(threads=THREADS),
    ) as testbed:
        outcome = measure(bench, testbed, on_progress=lambda _done, _all: None)
        results = testbed.results
    assert outcome.wrong == []
    for row in outcome.rows:
        assert row["packets"] > case.elements // 256 * case.workers
        assert row["retransmits"] < row["packets"] / 100
    found = [json.loads(path.read_text())["threads"] for path in results.glob("ports*.json")]
    assert found == [THREADS] * len(bench.fabric.switches)


def test_a_program_for_one_thread_is_refused_before_there_is_a_network(tmp_path: Path) -> None:
    program = tmp_path / "plain.p4"
    program.write_text(PLAIN)
    stages: list[str] = []
    with (
        pytest.raises(ProcessFailedError, match=r"2 threads cannot run this program: no header field"),
        open_testbed(
            hosts=2,
            link=UNSHAPED,
            results_root=tmp_path,
            state_dir=tmp_path / "state",
            program=program,
            switch_options=SwitchOptions(threads=2),
            controlled=False,
            on_stage=stages.append,
        ),
    ):
        pass
    assert [stage.partition(": ")[2] or stage for stage in stages] == ["compiling the P4 program"]
