# SPDX-License-Identifier: Apache-2.0
"""python -m inagg_controller, the same as the command inagg-controller."""

from inagg_controller.cli import main

main()
