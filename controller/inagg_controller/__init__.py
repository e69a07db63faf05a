# SPDX-License-Identifier: Apache-2.0
"""The inagg controller: jobs, slot leases, epochs and the switch's tables (docs/protocol.md, 5 to 8).

entries, leases, calls, job, jobs, loss    decide; they know no clock, thread, socket or gRPC
program                             what the P4 program provides, from its P4Info
switch                              P4Runtime, through p4runtime-shell, which nothing else imports
service                             drives the decisions in one asyncio loop and the switch on one thread
sizes                               of packets
tokens, guard                       secrets, and who may ask for what
models, api, connections            HTTP and JSON
metrics, reference                  the pages /metrics and /docs
logs                                the log's form
cli                                 the command inagg-controller
"""

import inagg_p4runtime.messages  # noqa: F401  before any module here imports p4.v1
