# SPDX-License-Identifier: Apache-2.0
"""How many examples hypothesis tries."""

import hypothesis

EXPLORE = "explore"  # the profile of `make explore`


def at_most(count: int, *, explored: int) -> int:
    """The number of examples of a test: `count`, and `explored` in `make explore`."""
    return explored if hypothesis.settings.get_current_profile_name() == EXPLORE else count
