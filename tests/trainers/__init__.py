# SPDX-License-Identifier: Apache-2.0
"""``make trainers``: training libraries over gloo, taken over by inagg, and over inagg by name, with the same weights.

`catalog` has the libraries, `programs/` a program for each, `installation` the environment, `__main__` runs them.
"""
