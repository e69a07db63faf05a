# SPDX-License-Identifier: Apache-2.0
"""The attacks. Each module has `run(folder, full)`, which yields outcomes. Amounts are small unless `full` is true."""
