# SPDX-License-Identifier: Apache-2.0
"""P4Runtime code that the switch and the controller share. Each module takes effect when it is imported.

messages   provides p4.v1 and p4.config.v1, with any installed protobuf
quiet      keeps gRPC's log lines off a command's stderr
"""
