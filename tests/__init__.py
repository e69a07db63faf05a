# SPDX-License-Identifier: Apache-2.0
"""Tests of everything, arranged as the sources are: hostlib, controller, switch, testbed; and beside these conformance
(all that speaks the protocol against one reference), fuzz, attack, bench and packaging.

Run pytest, and the programs here (`python -m tests.bench.numerics`), in the repository's folder.
"""

from pathlib import Path

ROOT = Path(__file__).parents[1]
INAGG_P4 = ROOT / "p4" / "inagg.p4"
BRIDGE_P4 = ROOT / "p4" / "bridge.p4"
