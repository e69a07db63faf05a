# SPDX-License-Identifier: Apache-2.0
"""Tests of backend "inagg" as training scripts meet it: collectives, DDP hooks, frameworks, PyTorch's own suite."""
