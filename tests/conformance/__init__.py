# SPDX-License-Identifier: Apache-2.0
"""A reference of docs/protocol.md in plain Python, and comparisons with the C++ core, the P4 program and scapy.

Read `reference`, `reference_switch` and `virtual_network`. `vectors` are bytes that every implementation must produce.
"""
