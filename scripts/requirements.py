# SPDX-License-Identifier: Apache-2.0
"""requirements.py PYPROJECT [EXTRA ...]: prints requirements of pyproject.toml, one a line.

Without an extra these are the base, the extras of the commands, development, and the frameworks tested with.

pip installs them with `--requirement`, so that the project itself is built afterwards against packages that are
there already, without a second, isolated set.
"""

import sys
import tomllib
from pathlib import Path

EXTRAS = (
    "worker",
    "switch",
    "controller",
    "server",
    "wire",
    "testbed",
    "simulator",
    "triton",
    "dev",
    "frameworks",
)

project = tomllib.loads(Path(sys.argv[1]).read_text())["project"]
wanted = [] if sys.argv[2:] else list(project["dependencies"])
wanted += [one for extra in sys.argv[2:] or EXTRAS for one in project["optional-dependencies"][extra]]
own = f"{project['name']}["  # an extra that includes others, which are in EXTRAS
print("\n".join(one for one in dict.fromkeys(wanted) if not one.startswith(own)))
