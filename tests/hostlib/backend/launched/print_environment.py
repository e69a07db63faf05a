# SPDX-License-Identifier: Apache-2.0
"""Writes its environment, as JSON, to the file RANK.json in a folder. Argument: the folder."""

import json
import os
import sys
from pathlib import Path

(Path(sys.argv[1]) / f"{os.environ['RANK']}.json").write_text(json.dumps(dict(os.environ)))
