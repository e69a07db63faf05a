# SPDX-License-Identifier: Apache-2.0
"""Exceptions of this package."""


class CaptureError(Exception):
    """A capture file that cannot be read. The message names the file and the reason."""


class NoPacketError(Exception):
    """Bytes that are no packet of the protocol. The message is the reason."""
