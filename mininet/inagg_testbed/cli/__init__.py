# SPDX-License-Identifier: Apache-2.0
"""The `inagg` command.

`main` brings testbeds up, `operating` looks into one, `bench` measures; `options` holds what they share.
"""

from inagg_testbed.cli.main import main

__all__ = ["main"]
