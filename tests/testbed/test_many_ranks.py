# SPDX-License-Identifier: Apache-2.0
"""As many ranks as a testbed can have, on this machine's processors."""

from pathlib import Path

import pytest

from inagg_testbed.bench.allreduce import AllReduceBench, run_bench
from inagg_testbed.bench.plan import Case
from inagg_testbed.network.fabric import MAX_HOSTS
from inagg_testbed.network.lifecycle import manifests
from inagg_testbed.network.links import LinkSpec

pytestmark = [pytest.mark.netns, pytest.mark.long, pytest.mark.alone]


@pytest.mark.timeout(900)
def test_64_ranks_sum_in_every_way(tmp_path: Path) -> None:
    backends = ("inagg:32", "inagg-shared:32", "inagg-server:32")
    case = Case(workers=MAX_HOSTS, elements=20_000, backends=backends, iterations=2, warmup=0)
    bench = AllReduceBench(link_name="100mbit", link=LinkSpec.parse("100mbit"), cases=(case,))
    outcome = run_bench(bench, tmp_path, on_stage=lambda _stage: None, on_progress=lambda _done, _all: None)
    assert outcome.wrong == []
    assert [row["checked"] for row in outcome.rows] == [True] * len(backends)
    assert not any(
        manifest.settings["results"].startswith(str(tmp_path)) for manifest in manifests().values()
    )
