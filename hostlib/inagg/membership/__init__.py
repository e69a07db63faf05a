# SPDX-License-Identifier: Apache-2.0
"""Membership of a job: how ranks find one another, join, stay and leave.

Read `session` (one rank in one job) and `standing` (the states it goes through), then `join`, `control`
(the controller's HTTP API), `heartbeat` and `presence` (how a rank stays, and how its death is seen). `assembly`,
`store` and `watch` gather the ranks through torch's store; `interface`, `mtu_probe` and `sockets` look at the network.
"""
