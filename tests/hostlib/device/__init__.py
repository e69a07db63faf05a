# SPDX-License-Identifier: Apache-2.0
"""Tests of tensors on devices. CPU tensors stand in where there is no GPU."""
