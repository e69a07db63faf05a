# SPDX-License-Identifier: Apache-2.0
"""Tests of mininet/inagg_testbed/network: links, hosts, what a run creates, and that exactly this is removed.

Read `test_links` and `test_network` first. `test_lifecycle` ends runs in every way;
`test_controller_access` attacks one host's job from another host.
"""
