# SPDX-License-Identifier: Apache-2.0
"""The life of jobs, as decisions only: nothing here knows a clock, a thread, a socket or gRPC.

`table` is the state machine; `job` holds its values, `leases` the slots it hands out, `calls` compares the collectives
that the ranks of a job call.
"""
