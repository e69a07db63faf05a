# SPDX-License-Identifier: Apache-2.0
"""Tests of backend "inagg" as training scripts use it: collectives, DDP hooks, frameworks, PyTorch's own tests.

`test_NAME` starts `NAME_worker` once on a testbed, a process for each rank, and checks what each rank reports. Read
`test_collectives` first, with `collectives_worker` and the cases in `collectives_sums` and `collectives_groups`.
"""
