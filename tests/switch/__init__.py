# SPDX-License-Identifier: Apache-2.0
"""Tests of the switch model: the compiler, compiled programs, p4/inagg.p4, the P4Runtime server, the packet ports.

`snippets` wraps a piece of P4 into a program; `bmv2` runs the same program on BMv2 where it is installed.
"""

from tests import ROOT

NATIVE = ROOT / "switch" / "inagg_switch" / "native"
PROGRAMS = ROOT / "tests" / "switch" / "programs"
