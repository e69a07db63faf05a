# SPDX-License-Identifier: Apache-2.0
"""Imports Mininet's classes without their side effects.

Debian's mininet 2.3.0 belongs to the system interpreter: the virtual environment must be one of /usr/bin/python3 with
--system-site-packages. The import warns about distutils and makes Mininet's logger class that of every later logger;
this module suppresses the first and undoes the second.
"""

import logging
import warnings
from typing import Any

from inagg_testbed.errors import MissingRequirementError

_logger_class = logging.getLoggerClass()
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    try:
        from mininet.cli import CLI
        from mininet.link import Intf, Link
        from mininet.log import lg, output
        from mininet.net import Mininet
        from mininet.node import Host, Node, Switch
        from mininet.topo import Topo
    except ImportError as error:
        raise MissingRequirementError(
            f"this Python cannot import Mininet ({error}): apt-get install mininet, and make the virtual environment"
            " with /usr/bin/python3 -m venv --system-site-packages"
        ) from error
    finally:
        logging.setLoggerClass(_logger_class)

__all__ = ["CLI", "Host", "Intf", "Link", "Node", "Switch", "Topo", "lg", "make_net", "output"]


def make_net(**options: Any) -> Any:
    """Mininet(**options) without Mininet.init(), which would raise sysctl limits of the whole machine permanently."""
    initialised = getattr(Mininet, "inited", False)
    Mininet.inited = True
    try:
        return Mininet(**options)
    finally:
        Mininet.inited = initialised
