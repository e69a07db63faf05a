"""An ordinary script, as in the README, runs on the testbed without knowing anything of it."""

import sys
from pathlib import Path

import pytest

from inagg_testbed.links import LinkSpec
from inagg_testbed.testbed import open_testbed

SCRIPT = Path(__file__).with_name("plain_ddp.py")


@pytest.mark.netns
def test_a_plain_script_needs_no_interface_names_and_no_destroy(tmp_path: Path) -> None:
    with open_testbed(hosts=2, link=LinkSpec.parse("unshaped"), results_root=tmp_path) as testbed:
        group = testbed.launch(
            [sys.executable, str(SCRIPT)], name="plain", environment={"GLOO_SOCKET_IFNAME": ""}
        )
        group.follow(lambda _rank, _event: None, timeout_s=60, watch=testbed.services)
