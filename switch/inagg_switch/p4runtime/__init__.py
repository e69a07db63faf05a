# SPDX-License-Identifier: Apache-2.0
"""The P4Runtime server: gRPC requests become calls of the control functions of a compiled program.

Read `server` (the gRPC server), `service` (its methods) and `controllers` (their sessions), then `write`, `read` and
`pipeline`. `entities/` converts each kind of entity between its message and the program.
"""
