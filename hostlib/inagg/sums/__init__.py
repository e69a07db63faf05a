# SPDX-License-Identifier: Apache-2.0
"""All-reduces that the switch sums: from a tensor to a finished `Work`.

Read `collectives` (the calls of a process group), then `queue` (the sums of one rank in one job), `reduction` (one
sum), `work` (what the caller waits for) and `completers` (the threads that call back). `operation` and `elements` map
torch's operations and dtypes to a sum of floats; `bundle` sums small tensors of one call together; `pending` finds
unfinished sums by the memory that they use; `calls` and `journal` note every collective, for ranks to compare.
"""
