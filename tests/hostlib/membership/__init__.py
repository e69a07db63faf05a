# SPDX-License-Identifier: Apache-2.0
"""Tests of hostlib/inagg/membership: how ranks join a job, stay, compare their calls and leave.

Read `test_session` first: one rank with a fake controller. `test_joining`, `test_fallback`, `test_mismatch`,
`test_multicast` and `test_reconfigure` start `NAME_worker` in a process for each rank.
"""
