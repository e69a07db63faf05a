# SPDX-License-Identifier: Apache-2.0
"""``make torchft``: examples/torchft_digits.py with torchft's lighthouse and Manager, while replicas are killed.

`training` runs the example and kills replicas, `__main__` compares ten kills over inagg and over gloo.
"""
