# SPDX-License-Identifier: Apache-2.0
"""The PTF framework, unmodified, drives a switch: its control plane with p4runtime-shell, its ports over veth pairs."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.switch.network import MakeNetwork
from tests.switch.p4runtime.client import SMALL_P4

PTF = Path(sys.executable).with_name("ptf")

pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(
        importlib.util.find_spec("ptf") is None or not PTF.exists(),
        reason="PTF is not installed: pip install -c constraints.txt ptf",
    ),
]


def test_ptf_runs_a_forwarding_test(network: MakeNetwork, switch_command: list[str], tmp_path: Path) -> None:
    net = network(0)
    for port in (1, 2):
        net.run(net.switch, f"ip link add port{port} type veth peer name ptf{port}")
        for end in (f"port{port}", f"ptf{port}"):
            net.run(net.switch, f"ip link set {end} up")
    subprocess.run([*switch_command, "compile", str(SMALL_P4), "-o", str(tmp_path)], check=True, timeout=120)
    net.start_and_wait(net.switch, *switch_command, "run", "--port", "1@port1", "--port", "2@port2",
                       "--grpc", f"unix:{tmp_path}/s.sock")  # fmt: skip
    shutil.copytree(Path(__file__).parent / "ptf_tests", tmp_path / "tests")
    parameters = (f"grpc='unix:{tmp_path}/s.sock';p4info='{tmp_path}/p4info.txtpb';"
                  f"config='{tmp_path}/{SMALL_P4.name}'")  # fmt: skip
    command = ["ip", "netns", "exec", net.switch, sys.executable, str(PTF), "--test-dir", str(tmp_path / "tests"),
               "--pypath", str(tmp_path), "-i", "1@ptf1", "-i", "2@ptf2", "--test-params", parameters]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "forwarding.ForwardingTest ... ok" in done.stdout + done.stderr
