# SPDX-License-Identifier: Apache-2.0
"""Programs that end in every state of a group, in every way. `cases` lists these, `hunt` repeats them many times."""
