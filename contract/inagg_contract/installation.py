# SPDX-License-Identifier: Apache-2.0
"""What pip has to be told to install an extra of the inagg that runs. Needs only the standard library."""

import json
import shlex
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from urllib.parse import unquote, urlsplit


def pip_install(extra: str) -> str:
    """The command that adds an extra to the installed distribution, from where pip took that: a wheel, a folder, a
    repository or an index."""
    try:
        installed = distribution("inagg")
    except PackageNotFoundError:  # its packages are on sys.path without an installation
        return f"pip install 'inagg[{extra}]'"
    return f"pip install {_requirement(installed, extra)}"


def _requirement(installed: Distribution, extra: str) -> str:
    origin = json.loads(installed.read_text("direct_url.json") or "{}")  # PEP 610; an index leaves none
    url = origin.get("url", "")
    if "vcs_info" in origin:
        source = f"{origin['vcs_info']['vcs']}+{url}@{origin['vcs_info']['commit_id']}"
        return shlex.quote(f"inagg[{extra}] @ {source}")
    if urlsplit(url).scheme == "file":
        editable = "--editable " if origin.get("dir_info", {}).get("editable") else ""
        return editable + shlex.quote(f"{unquote(urlsplit(url).path)}[{extra}]")
    if url:
        return shlex.quote(f"inagg[{extra}] @ {url}")
    return shlex.quote(f"inagg[{extra}]=={installed.version}")
