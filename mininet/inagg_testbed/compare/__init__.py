# SPDX-License-Identifier: Apache-2.0
"""`inagg compare`: one training under several architectures, on the same links, from the same weights and batches.

`ways` names the architectures, `run` trains under each, and `figures` says what is measured. In each rank `rank` runs
the program, which knows nothing of this: `probe` takes its groups over, and measures its steps from outside.
"""
