# SPDX-License-Identifier: Apache-2.0
"""scapy's layers, the Wireshark dissector and `inagg decode`, on captures made of the conformance vectors and of the
reference's packets."""
