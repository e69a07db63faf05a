# SPDX-License-Identifier: Apache-2.0
"""python docs/diagrams: draws docs/images/*.svg from the modules beside this one."""

import runpy
from pathlib import Path

for diagram in ("parts", "packet", "slot", "exchange", "threads"):
    runpy.run_path(str(Path(__file__).with_name(f"{diagram}.py")))
