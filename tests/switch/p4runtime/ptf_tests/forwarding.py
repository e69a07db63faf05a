# SPDX-License-Identifier: Apache-2.0
"""A test as PTF runs it (test_ptf.py): p4runtime-shell writes a table, PTF's data plane sends and expects packets."""

import p4runtime_sh.shell as sh
import ptf
import ptf.testutils as tu
from ptf.base_tests import BaseTest


class ForwardingTest(BaseTest):  # type: ignore[misc]  # ptf has no types
    """Frames for a station leave by its port, frames for others do not leave."""

    def setUp(self) -> None:
        super().setUp()
        self.dataplane = ptf.dataplane_instance
        given = tu.test_params_get()
        config = sh.FwdPipeConfig(given["p4info"], given["config"])
        sh.setup(device_id=1, grpc_addr=given["grpc"], election_id=(0, 1), config=config, verbose=False)

    def tearDown(self) -> None:
        sh.teardown()
        super().tearDown()

    def runTest(self) -> None:  # noqa: N802 - unittest's name
        entry = sh.TableEntry("SmallIngress.forward")(action="SmallIngress.send")
        entry.match["dst"] = "02:00:00:00:00:02"
        entry.action["port"] = "2"
        entry.insert()
        known = tu.simple_udp_packet(eth_dst="02:00:00:00:00:02", eth_src="02:00:00:00:00:01")
        tu.send_packet(self, 1, known)
        tu.verify_packet(self, known, 2)
        unknown = tu.simple_udp_packet(eth_dst="02:00:00:00:00:03", eth_src="02:00:00:00:00:01")
        tu.send_packet(self, 1, unknown)
        tu.verify_no_packet(self, unknown, 2)
        entry.delete()
        tu.send_packet(self, 1, known)
        tu.verify_no_packet(self, known, 2)
