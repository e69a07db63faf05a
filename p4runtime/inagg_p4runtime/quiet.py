# SPDX-License-Identifier: Apache-2.0
"""Importing this module keeps gRPC's log lines ("E0000 00:00:1700000000.000000 ...") off stderr, unless GRPC_VERBOSITY
is set.

Commands import it before grpc, because they log errors themselves.
"""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")
