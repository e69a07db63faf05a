# SPDX-License-Identifier: Apache-2.0
"""Tests of mininet/inagg_testbed/cli: the `inagg` command.

`test_cli` starts the command as a process: help, bad input, exit statuses. `test_packages` has the versions that
`inagg doctor` checks. Commands on a testbed that is up are tested in `tests/testbed/operate`.
"""
