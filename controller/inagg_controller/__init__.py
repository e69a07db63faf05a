# SPDX-License-Identifier: Apache-2.0
"""The inagg controller: jobs, slot leases, epochs and the switch's tables (docs/protocol.md, 5 to 8).

`jobs` decides, `switch` writes the decisions into the tables over P4Runtime, `http` is the API. `service` connects the
three: one asyncio loop for the decisions, one thread for the switch. Read `jobs.table` first, then `service`.
"""

import inagg_p4runtime.messages  # noqa: F401  before any module here imports p4.v1
