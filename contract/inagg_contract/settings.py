# SPDX-License-Identifier: Apache-2.0
"""A check that settings from files and variables need, whatever they set."""


def refuse_truth_value(value: object) -> object:
    """The value. Raises ValueError for true and false, which Python would accept for numbers."""
    if isinstance(value, bool):
        raise ValueError("true and false are not values of this setting")
    return value
