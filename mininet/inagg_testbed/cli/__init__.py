# SPDX-License-Identifier: Apache-2.0
"""The `inagg` command.

`main` brings testbeds up and takes them down, `operating` inspects one that is up, `bench` measures. `options` holds
the options, the console and the error handling that they share.
"""

from inagg_testbed.cli.main import main

__all__ = ["main"]
