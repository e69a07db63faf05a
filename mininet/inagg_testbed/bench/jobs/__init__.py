# SPDX-License-Identifier: Apache-2.0
"""`inagg bench jobs`: several jobs on one network, with a pool of slots that may be too small for all of them.

Each job has its own hosts, and pauses and sums by a schedule that is the same for every policy. A policy says what sums
for the jobs; `plan.POLICIES` has them. Start reading in `run`; `figures` defines what is measured.
"""
