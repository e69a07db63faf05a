# SPDX-License-Identifier: Apache-2.0
"""The inagg controller: jobs, slot leases, epochs and the switch's tables (docs/protocol.md, 5 to 8).

`jobs` decides, `driver` has `switch` write the decisions into the tables over P4Runtime, `http` is the API. `service`
connects them: one asyncio loop for the decisions, one thread for each switch. Read `jobs.table` first, then `service`.
"""

import inagg_p4runtime.messages  # noqa: F401  before any module here imports p4.v1
