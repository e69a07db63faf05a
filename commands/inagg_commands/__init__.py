# SPDX-License-Identifier: Apache-2.0
"""The entry points of the commands. See `cli`."""
