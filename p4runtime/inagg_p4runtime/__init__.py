# SPDX-License-Identifier: Apache-2.0
"""P4Runtime code that the switch, the controller and the testbed share.

messages   when imported, provides p4.v1 and p4.config.v1, with any installed protobuf
quiet      when imported, keeps gRPC's log lines off a command's stderr
names      finds a program's objects by the ends of their names
cells      reads cells of counters and registers, without a protobuf object for each
registers  reads registers, which p4runtime-shell does not
"""
