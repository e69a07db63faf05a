# SPDX-License-Identifier: Apache-2.0
"""`inagg demo`: compares the same training over gloo and through the switch.

Read `run` first. `train_digits` is the script that each worker runs; `report` and `plots` present the results.
"""
