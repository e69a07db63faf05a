# SPDX-License-Identifier: Apache-2.0
"""python -m inagg_controller, the same as the command inagg-controller."""

from .cli import main

main()
