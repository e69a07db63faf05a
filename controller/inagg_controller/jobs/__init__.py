# SPDX-License-Identifier: Apache-2.0
"""Decisions about jobs, without clock, thread, socket or gRPC.

`table` is the state machine. `job` defines its values, `leases` leases slots, `calls` compares the collectives that the
ranks of a job call.
"""
