# SPDX-License-Identifier: Apache-2.0
"""The command `inagg-server`: an aggregation server that serves jobs as the controller orders (docs/protocol.md, 5.6).

`agent` keeps it in step with the controller; the sums are the C++ core's (`hostlib/native/server`).
"""

from inagg_server.cli import main

__all__ = ["main"]
