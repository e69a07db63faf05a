# SPDX-License-Identifier: Apache-2.0
"""A job in a world of one process: engines, the P4 program, servers and the controller's decisions, in virtual time."""
