# SPDX-License-Identifier: Apache-2.0
"""Architectures that exchange weights: real processes on gloo. `ranks` runs them, `worker` is what each does."""
