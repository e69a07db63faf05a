# SPDX-License-Identifier: Apache-2.0
"""What the switch and the controller share of P4Runtime.

messages     importing it provides p4.v1 and p4.config.v1, beside whatever protobuf is installed
quiet_grpc   for commands, before they import grpc
"""

import os


def quiet_grpc() -> None:
    """Keeps gRPC's own lines ("E0000 00:00:1700000000.000000 ...") off stderr, unless GRPC_VERBOSITY is set: what goes
    wrong is in our logs already."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
