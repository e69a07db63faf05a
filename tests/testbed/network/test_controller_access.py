# SPDX-License-Identifier: Apache-2.0
"""Requests and packets by which a host attacks another host's job, or the switch, over its own link."""

import stat
from pathlib import Path
from typing import Any

import pytest

from inagg_testbed.errors import ControllerRefusedError
from inagg_testbed.network.control import CONTROLLER_URL, _request, call_in_network_namespace
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.testbed import Testbed, open_testbed

pytestmark = pytest.mark.netns


def ask(testbed: Testbed, host: int, method: str, path: str, body: Any = None, secret: str = "-") -> Any:
    """A request that host `host` makes."""
    url = CONTROLLER_URL + path
    return call_in_network_namespace(
        testbed.network.host(host).pid, lambda: _request(method, url, body, secret)
    )


def test_a_host_cannot_touch_the_job_of_another_nor_the_switch(tmp_path: Path) -> None:
    with open_testbed(
        hosts=2,
        link=LinkSpec.parse("unshaped"),
        results_root=tmp_path,
        state_dir=tmp_path / "state",
    ) as testbed:
        job = ask(testbed, 1, "POST", "/jobs", {"workers": 1, "slots": 4})
        worker = {"rank": 0, "ip": "10.0.0.1", "mac": "02:00:0a:00:00:01", "udp_port": 4000}
        ask(testbed, 1, "POST", "/jobs/1/workers", worker, job["secret"])
        own = ask(testbed, 2, "POST", "/jobs", {"workers": 1, "slots": 4})["secret"]
        loss = {"port": 1, "direction": "ingress", "probability": 1.0}
        for method, path, body in [
            ("DELETE", "/jobs/1", None),
            ("DELETE", "/jobs/1/workers/0?error=forged%0Aline", None),
            ("POST", "/jobs/1/workers/0/heartbeat", {}),
            ("PUT", "/loss", loss),
            ("GET", "/jobs", None),
            ("GET", "/counters", None),
            ("GET", "/metrics", None),
        ]:
            for secret in ("-", own):
                with pytest.raises(ControllerRefusedError, match="Wrong secret: this is not the "):
                    ask(testbed, 2, method, path, body, secret)
        with pytest.raises(ControllerRefusedError, match=r"10\.0\.0\.1, which .* place at s1:1, is not"):
            ask(testbed, 2, "POST", "/jobs/2/workers", worker, own)
        running = ask(testbed, 1, "GET", "/jobs/1?wait=running", secret=job["secret"])
        assert (running["state"], running["lost"]) == ("running", [])
        assert testbed.controller is not None
        assert testbed.controller.request("GET", "/loss") == {"loss": []}
        assert len(testbed.controller.request("GET", "/jobs")["jobs"]) == 2
        token = testbed.results / "controller.token"
        assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert "forged" not in (testbed.results / "controller.log").read_text()
