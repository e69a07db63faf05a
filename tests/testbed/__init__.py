# SPDX-License-Identifier: Apache-2.0
"""Tests of the testbed (mininet/inagg_testbed), in its folders, and of whole trainings on it.

`test_training` and `test_own_program` run commands that bring up a testbed. Tests that make network namespaces are
marked `netns`. The fixtures are in `conftest`.
"""
