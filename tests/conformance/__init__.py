# SPDX-License-Identifier: Apache-2.0
"""A reference of docs/protocol.md in plain Python, and all that speaks the protocol against it: C++, P4, scapy.

Read `reference`, `reference_switch` and `virtual_network`. `vectors` are bytes that every implementation must produce.
"""
