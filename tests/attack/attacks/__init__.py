# SPDX-License-Identifier: Apache-2.0
"""The attacks. Each module has `run(folder, full)`, which yields outcomes; without `full` amounts are small."""
