# SPDX-License-Identifier: Apache-2.0
"""python -m inagg_switch.cli."""

from inagg_switch.cli.main import main

main()
