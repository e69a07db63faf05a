# SPDX-License-Identifier: Apache-2.0
"""The P4Runtime server: gRPC requests to the control functions of a compiled program.

Read `server` (the gRPC server), `service` (its methods and their lock), then `write`, `read` and `pipeline`. Modules
named after an entity (`entries`, `profiles`, `meters`, `replication`, `value_sets`, `digests`, `packets`) convert it
between messages and the program; `names` maps P4Info ids; `target` is all that the service knows of a switch.
"""
