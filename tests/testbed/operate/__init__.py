# SPDX-License-Identifier: Apache-2.0
"""Tests of mininet/inagg_testbed/operate: commands on a testbed that is up.

`test_operating` has the commands that inspect a testbed, `test_script` has `inagg run`. Both start the command as a
process and need network namespaces.
"""
