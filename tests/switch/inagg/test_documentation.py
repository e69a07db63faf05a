# SPDX-License-Identifier: Apache-2.0
"""docs/counters.md and docs/protocol.md name every counter of p4/inagg.p4, and docs/counters.md no other. The packet
vectors that docs/switch.md shows are right.
"""

import re
from pathlib import Path

from inagg_contract.program import inagg_p4
from inagg_switch import Switch
from inagg_switch.vectors.format import read_vectors
from inagg_switch.vectors.run import failures
from tests import ROOT


def test_the_documentation_names_every_counter_of_the_program() -> None:
    program = inagg_p4()
    sources = [program, *(program.parent / "include").glob("*.p4")]
    counters = {
        name
        for source in sources
        for name in re.findall(r"^ *(?:direct_)?counter\(.*\) (\w+);", source.read_text(), re.MULTILINE)
    }
    assert len(counters) > 15
    page = (ROOT / "docs" / "counters.md").read_text()
    section = page.partition("## The P4 program")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == counters
    protocol = (ROOT / "docs" / "protocol.md").read_text()
    assert not {name for name in counters if f"`{name}`" not in protocol}


def test_the_vectors_of_the_documentation_pass() -> None:
    path = Path(__file__).parent / "sums.vectors"
    with Switch.from_p4(inagg_p4(), {"WORDS": "1"}) as switch:
        assert list(failures(switch, read_vectors(path))) == []
    page = (ROOT / "docs" / "switch.md").read_text().partition("### Vectors for inagg.p4")[2]
    shown = page.split("```")[1].strip()
    assert len(shown.splitlines()) > 8
    assert shown in path.read_text()
