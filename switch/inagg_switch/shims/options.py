# SPDX-License-Identifier: Apache-2.0
"""Command lines of p4c and BMv2: options with effect here, options without, and options that are refused."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from inagg_switch.cli.options import UsageError


class _WithoutEffect(argparse.Action):
    """An option of which only whether it was given is kept."""

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        namespace.without_effect.append(option)


class _Refused(argparse.Action):
    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> NoReturn:
        raise UsageError(f"{option} is not supported by inagg's switch")


class Options(argparse.ArgumentParser):
    """A parser that raises UsageError and takes no abbreviations."""

    def __init__(self, name: str, description: str) -> None:
        super().__init__(name, description=description, allow_abbrev=False)
        self.set_defaults(without_effect=[])

    def add_without_effect(self, *names: str, value: bool = False) -> None:
        """Options whose meaning makes no difference here. value: each takes one."""
        for name in names:
            self.add_argument(
                name, action=_WithoutEffect, nargs=None if value else 0, help="no effect here", dest="ignored"
            )

    def add_refused(self, *names: str) -> None:
        """Options that would change results and cannot."""
        for name in names:
            self.add_argument(name, action=_Refused, nargs="?", help=argparse.SUPPRESS, dest="refused")

    def error(self, message: str) -> NoReturn:
        """Called by argparse."""
        raise UsageError(f"{message}; see {self.prog} --help")


def parse(parser: Options, arguments: Sequence[str], what: str = "a file") -> argparse.Namespace:
    """Parse options and at most one positional argument, `file`. Prints which options have no effect. Raises
    UsageError.

    The positional argument may stand anywhere.
    """
    parser.set_defaults(without_effect=[])
    options, rest = parser.parse_known_args(arguments)
    unknown = [one for one in rest if one.startswith("-")]
    if unknown:
        raise UsageError(f"unknown option {unknown[0]}; see {parser.prog} --help")
    if len(rest) > 1:
        raise UsageError(f"one argument that is not an option, {what}, is enough: {' '.join(rest)}")
    if options.without_effect:
        print(f"{parser.prog}: no effect here: {' '.join(options.without_effect)}", file=sys.stderr)
    options.file = rest[0] if rest else None
    return options
