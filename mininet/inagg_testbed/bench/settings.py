# SPDX-License-Identifier: Apache-2.0
"""What the JSON file of a benchmark says besides its figures, so that the benchmark can be run again."""

import os
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from inagg_testbed.network.testbed import Testbed
from inagg_testbed.report.machine import machine_description

_OF_TESTBED = ("topology", "rank_order", "hosts", "servers", "switch", "link", "uplink")


def settings_of(testbed: Testbed) -> dict[str, Any]:
    """The command line, inagg's version, the machine, and the testbed: fabric, kind of switch, links."""
    known = testbed.run.manifest.settings
    return {
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "inagg": metadata.version("inagg"),
        "machine": machine_description(),
        "processors": os.cpu_count(),
        **{name: known[name] for name in _OF_TESTBED},
    }
