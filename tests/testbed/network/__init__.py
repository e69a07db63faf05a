# SPDX-License-Identifier: Apache-2.0
"""Tests of the network of a testbed: links, what a run creates, and that exactly this is removed."""
