# SPDX-License-Identifier: Apache-2.0
"""What a program has printed, without gloo's lines: gloo of torch 2.8 to 2.10 prints one when a group connects."""


def without_gloo(printed: str) -> str:
    lines = printed.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("[Gloo] Rank ")).strip()
