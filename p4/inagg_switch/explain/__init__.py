# SPDX-License-Identifier: Apache-2.0
"""Shows the author of a program its tables, memory and headers: `stages` computes them from the IR, `report` prints."""
