# SPDX-License-Identifier: Apache-2.0
"""What a program consists of, for its author: `stages` computes it from the IR, `report` prints it."""
