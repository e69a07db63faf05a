# SPDX-License-Identifier: Apache-2.0
"""python -m inagg_switch.shims COMMAND ARGUMENT...: runs a command under its name, such as simple_switch_grpc."""

import ctypes
import sys
from importlib.metadata import version

import inagg_p4runtime.quiet  # noqa: F401  before grpc is imported

_PR_SET_NAME = 15  # linux/prctl.h


def _be_called(name: str) -> None:
    """Name the process, so that `pkill simple_switch` of scripts finds it."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def main() -> None:
    """Entry point of the scripts that `inagg-switch shims` writes."""
    name, arguments = sys.argv[1], sys.argv[2:]
    if {"--version", "-v"} & set(arguments) or (name == "p4c-bm2-ss" and "--Version" in arguments):
        print(f"{name} of inagg-switch {version('inagg')}")
        return
    if name in ("p4c", "p4c-bm2-ss"):
        from inagg_switch.shims import p4c

        sys.exit(p4c.main(name, arguments))
    if name == "simple_switch_CLI":
        from inagg_switch.shims import switch_cli

        sys.exit(switch_cli.main(arguments))
    from inagg_switch.shims import simple_switch

    _be_called(name)
    sys.exit(simple_switch.main(name, arguments))


if __name__ == "__main__":
    main()
