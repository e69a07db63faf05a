# SPDX-License-Identifier: Apache-2.0
"""The command `inagg-switch`: compile a P4 program, test it on packet vectors, run it on interfaces, measure it.

`main` registers the commands. `programs`, `run`, `bench` and `shims` implement them, `options` has what they share. The
modules behind a command are imported when it runs, so that `--help` does not wait for the compiler.
"""

from inagg_switch.cli.main import main

__all__ = ["main"]
