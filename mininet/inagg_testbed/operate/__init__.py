# SPDX-License-Identifier: Apache-2.0
"""What `inagg status`, `logs`, `capture`, `shell` and `run` do with a testbed that another process keeps up.

Each command is one module; all of them find the testbed through its manifest (`network.lifecycle`).
"""
