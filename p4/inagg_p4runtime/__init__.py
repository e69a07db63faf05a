# SPDX-License-Identifier: Apache-2.0
"""What the switch and the controller share of P4Runtime. Both modules work by being imported.

messages   provides p4.v1 and p4.config.v1, beside whatever protobuf is installed
quiet      keeps gRPC's own lines off a command's stderr
"""
