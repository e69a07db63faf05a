# SPDX-License-Identifier: Apache-2.0
"""What `inagg status`, `logs`, `capture`, `shell`, `kill`, `restart` and `run` do with a testbed that is up.

Each command is one module. `run` brings up its testbed; the others find one that another process keeps up through its
manifest (`network.lifecycle`).
"""
