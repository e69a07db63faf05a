# SPDX-License-Identifier: Apache-2.0
"""`inagg decode` on the captures of a testbed that loses packets: it names what the switch has really dropped."""

from pathlib import Path

import pytest

from inagg_testbed.network.control import ControllerClient, switch_controller_of
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.switch_options import SwitchOptions
from inagg_testbed.network.testbed import open_testbed
from inagg_wire.captures import Captures
from inagg_wire.decoder import Decoder
from inagg_wire.story import stories
from inagg_wire.summary import summary
from tests.testbed.programs import sum_rightly

pytestmark = pytest.mark.netns


def dropped(controller: ControllerClient) -> dict[str, int]:
    """What the switch's loss injection has dropped, by direction."""
    (counters,) = controller.counters().values()
    return {
        way: sum(count.packets for count in counters.get(f"{way}_loss_injected", {}).values())
        for way in ("ingress", "egress")
    }


def test_what_is_lost_is_what_the_switch_has_dropped(tmp_path: Path) -> None:
    options = SwitchOptions(pcap=tmp_path / "captures", threads=1)
    with open_testbed(
        hosts=2,
        link=LinkSpec.parse("unshaped"),
        results_root=tmp_path,
        state_dir=tmp_path / "state",
        switch_options=options,
    ) as testbed:
        controller = switch_controller_of(testbed.run.manifest)
        port = testbed.network.fabric.host_ports[1]
        for direction in ("ingress", "egress"):
            controller.set_loss(port, direction, 0.03, "aggregation")
        sum_rightly(testbed, elements=200_000)
        truth = dropped(controller)
    paths = sorted((tmp_path / "captures").glob("*.pcap"))
    decoder = Decoder()
    files = Captures(paths)
    decoder.take_all(files.frames())
    found = summary(decoder, files.notes)
    (job,) = found["jobs"]
    none, lossy = job["members"]
    assert min(truth.values()) > 5
    # A query and its answer, and a repeated contribution and its result, look alike to the captures.
    assert set(none["lost"].values()) == {0}
    assert sum(lossy["lost"].values()) == sum(truth.values())
    assert lossy["lost"]["contribution"] + lossy["lost"]["result"] > 0
    assert job["chunks"] > 200_000 // 256
    check_stories(paths, sorted(slow["chunk"] for slow in job["slowest"]))


def check_stories(paths: list[Path], chunks: list[int]) -> None:
    """The slowest chunks have lost something. Their stories say where packets of rank 1 were last seen."""
    for chunk in chunks[:3]:
        decoder = Decoder(chunk=chunk)
        decoder.take_all(Captures(paths).frames())
        (story,) = stories(decoder, 128)
        assert story["lost"]
        for loss in story["lost"]:
            where = {"result": "never at port 2 out", "contribution": "last seen at port 2 in"}
            assert where.get(loss["what"], "") in loss["text"]
        assert all(each["ms"] is not None for each in story["received"])
