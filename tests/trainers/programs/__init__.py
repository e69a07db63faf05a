# SPDX-License-Identifier: Apache-2.0
"""Training programs as users have them: each runs on any number of ranks, names gloo or nothing, and saves its weights.

`training.py` has what they share: inputs, and where weights go.
"""
