# SPDX-License-Identifier: Apache-2.0
"""Random and damaged input: P4 programs for the compiler, datagrams for engines. README.md says how to run them."""
