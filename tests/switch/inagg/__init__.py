# SPDX-License-Identifier: Apache-2.0
"""Tests of p4/inagg.p4, run in this process. `packets` writes frames by hand."""
