# SPDX-License-Identifier: Apache-2.0
"""Importing this keeps gRPC's own lines ("E0000 00:00:1700000000.000000 ...") off stderr, unless GRPC_VERBOSITY is set.

For commands, which log themselves what goes wrong; before they import grpc.
"""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")
