# SPDX-License-Identifier: Apache-2.0
"""Decisions about jobs, without clock, thread, socket or gRPC.

`table` is what clients and ranks ask; `served` and `switched` are what happens to servers and switches. `states`
changes the states of jobs. `planning` plans what sums for a job, `placement` is that plan's life in switches, and
`installation` makes its entries. `resources`, `leases` and `servers` keep account of what jobs have of switches and
servers. `liveness` says which ranks are lost; `calls` compares the collectives that they call.
"""
