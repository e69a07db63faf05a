# SPDX-License-Identifier: Apache-2.0
"""Tests of the P4Runtime server (switch/inagg_switch/p4runtime) over real gRPC.

`client` is a small controller, `objects` has messages for objects.p4; read these first, then `test_server` and
`test_entities`. `test_bmv2` compares answers with BMv2's.
"""
