# SPDX-License-Identifier: Apache-2.0
"""`inagg demo`: one training over gloo and through the switch, compared.

Read `run` first; `train_digits` is what each worker does, `report` and `plots` write the results for people.
"""
