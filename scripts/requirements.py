# SPDX-License-Identifier: Apache-2.0
"""Prints the requirements of pyproject.toml, those for development and of the frameworks tested with included, one a
line.

pip installs them with `--requirement`, so that the project itself is built afterwards against packages that are
there already, without a second, isolated set.
"""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path(sys.argv[1]).read_text())["project"]
extras = project["optional-dependencies"]
print("\n".join(project["dependencies"] + extras["dev"] + extras["frameworks"]))
