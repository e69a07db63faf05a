# SPDX-License-Identifier: Apache-2.0
"""Members of jobs on a tree of switches."""

from inagg_controller.switch.entries import Member


def member(rank: int) -> Member:
    return Member(
        rank=rank,
        ip=0x0A000001 + rank,
        mac=0x020000000001 + rank,
        udp_port=5000 + rank,
        port=1 + rank % 2,
    )
