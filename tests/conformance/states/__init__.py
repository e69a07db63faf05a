# SPDX-License-Identifier: Apache-2.0
"""Every state of slots of small jobs, and every packet in each: an implementation must do what the rules say, and hold
afterwards what they say.

`exploration` finds the states. `versions` has those of leased slots and of servers, `shared` those of shared slots.
"""
