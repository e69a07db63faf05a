# SPDX-License-Identifier: Apache-2.0
"""Chaos: each fault of each part in each phase of a job, on real processes (`make chaos`)."""
