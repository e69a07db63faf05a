# SPDX-License-Identifier: Apache-2.0
"""Gradients that come too late: a thread contributes in place of a program that others wait for.

Start at `deadline`, the communication hook. `sums` has the sums of buckets, which the program or `stand_in`'s thread
begins; `turns` their order; `arrivals` when a program counts as late; `roll_call` how ranks learn that others wait.
"""

from inagg.late.deadline import Deadline, deadline

__all__ = ["Deadline", "deadline"]
