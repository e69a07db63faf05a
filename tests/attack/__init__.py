# SPDX-License-Identifier: Apache-2.0
"""Attacks on a testbed whose ranks sum all the time: `make attack`.

siege holds what attacks share, ranks and worker the sums that are under attack, outcome the verdict; each module of
attacks is one attack.
"""
