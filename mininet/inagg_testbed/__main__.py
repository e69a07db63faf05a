# SPDX-License-Identifier: Apache-2.0
"""python -m inagg_testbed: the `inagg` command."""

from inagg_testbed.cli.main import main

main()
