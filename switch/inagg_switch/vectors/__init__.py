# SPDX-License-Identifier: Apache-2.0
"""Packet vectors: tests of a program in plain text. `format` reads and writes them, `run` runs them on a `Switch`."""
