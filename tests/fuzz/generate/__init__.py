# SPDX-License-Identifier: Apache-2.0
"""Random programs and packets, from a seed. Start with `generator`."""
