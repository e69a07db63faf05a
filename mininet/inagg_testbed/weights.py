# SPDX-License-Identifier: Apache-2.0
"""Weights in words: ranks that have the same have the same hash."""

import hashlib
from collections.abc import Iterable

import torch


def sha256(tensors: Iterable[torch.Tensor]) -> str:
    """SHA-256 over the bytes of tensors of any types, shapes and devices, in hexadecimal digits."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
