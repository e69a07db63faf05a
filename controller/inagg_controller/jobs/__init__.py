# SPDX-License-Identifier: Apache-2.0
"""Decisions about jobs, without clock, thread, socket or gRPC.

`table` is the state machine. `job` defines its values, `resources` plans a job's tree and leases its slots, of which
`leases` keeps account, `installation` makes its entries. `servers` keeps account of the aggregation servers, of
which jobs have some beside a switch or instead. `calls` compares the collectives that the ranks of a job call.
"""
