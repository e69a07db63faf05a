# SPDX-License-Identifier: Apache-2.0
"""A testbed without offloads: captures and traces show the packets of docs/protocol.md."""

import threading
from pathlib import Path

import pytest
from scapy.layers.inet import IP, UDP
from scapy.utils import rdpcap

from inagg_contract.constants import WORD_BYTES
from inagg_contract.sizes import FRAME_HEADERS_BYTES
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.switch_options import SwitchOptions
from inagg_testbed.network.testbed import open_testbed
from inagg_testbed.operate.capture import Captured, capture, find_place
from tests.testbed.programs import sum_rightly
from tests.waiting import wait_until

pytestmark = pytest.mark.netns

DATA = FRAME_HEADERS_BYTES + 4 * WORD_BYTES
SIZES = {FRAME_HEADERS_BYTES, DATA}  # without and with words


@pytest.mark.long
def test_without_offloads_captures_and_the_trace_have_the_protocols_packets(tmp_path: Path) -> None:
    options = SwitchOptions(trace=True, pcap=tmp_path / "captures")
    at_host, captured, over = tmp_path / "h1.pcap", Captured(), threading.Event()
    with open_testbed(
        hosts=2,
        link=LinkSpec.parse("unshaped", offloads=False),
        results_root=tmp_path,
        state_dir=tmp_path / "state",
        switch_options=options,
    ) as testbed:
        place = find_place(testbed.run.manifest, "h1")
        with at_host.open("wb") as file:
            capturing = threading.Thread(
                target=capture,
                args=(place, file, captured),
                kwargs={"count": None, "alive": lambda: not over.is_set()},
            )
            capturing.start()
            wait_until(lambda: at_host.stat().st_size > 0, "the capture has begun")
            sum_rightly(testbed, elements=20_000)
            over.set()
            capturing.join()
        log = testbed.services[0].log_path.read_text()
    assert captured.frames > 0
    for path in (at_host, *(options.pcap / f"port1_{way}.pcap" for way in ("in", "out"))):  # type: ignore[operator]
        frames = [frame for frame in rdpcap(str(path)) if UDP in frame]
        assert {len(frame) for frame in frames} == SIZES, path
        for frame in frames:
            assert frame[IP].len == len(frame[IP]), path
            assert frame[UDP].len == len(frame[UDP]), path
    assert f"packet of {DATA} bytes received on port 1\n" in log
    assert f"packet of {DATA} bytes sent to port 2\n" in log
