# SPDX-License-Identifier: Apache-2.0
"""p4runtime-shell with registers, which it lacks."""

import codeop
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from typing import Any, NoReturn

import p4runtime_sh.shell as sh
from IPython.core.autocall import ExitAutocall
from IPython.core.inputtransformer2 import leading_indent
from IPython.terminal.ipapp import TerminalIPythonApp
from IPython.terminal.prompts import Prompts
from p4.v1 import p4runtime_pb2
from p4runtime_sh.p4runtime import parse_p4runtime_error

import inagg_p4runtime.messages  # noqa: F401  (before p4runtime_sh)
from inagg_p4runtime.registers import Register, find, read, registers_of

_INTERRUPTED = 130  # 128 + SIGINT, as of shells


class RegisterEntry:
    """A cell of a register, or all its cells, in the style of p4runtime-shell's entities.

    Usage:
        register_entry["seen"].read()              all cells, as an iterator of RegisterEntry
        register_entry["seen"](index=3).read(print)
        register_entry["seen"](index=3, value=7).modify()    without an index, all cells

    index: None stands for all cells. value: what was read, or is to be written.
    """

    def __init__(self, name: str) -> None:
        self.info = _find(name)
        self.index: int | None = None
        self.value: int | None = None

    def __call__(self, index: int | None = None, value: int | None = None) -> "RegisterEntry":
        """Set index and value."""
        self.index, self.value = index, value
        return self

    def __repr__(self) -> str:
        where = "" if self.index is None else f"[{self.index}]"
        return f"{self.info.name}{where}" + (
            "" if self.value is None else f" = {self.value} ({self.value:#x})"
        )

    def read(
        self, function: Callable[["RegisterEntry"], object] | None = None
    ) -> Iterator["RegisterEntry"] | None:
        """The cells, or with a function: call it with each of them. Raises UserError, P4RuntimeException."""
        cells: Iterator[RegisterEntry] = self._read(self._entry())
        if function is None:
            return cells
        for each in cells:
            function(each)
        return None

    def modify(self) -> None:
        """Write the value. Raises UserError, P4RuntimeException."""
        if self.value is None:
            raise sh.UserError("value is missing")
        update = p4runtime_pb2.Update(type=p4runtime_pb2.Update.MODIFY)
        entry = self._entry()
        try:
            entry.data.bitstring = self.info.encode(self.value)
        except ValueError as error:
            raise sh.UserError(str(error)) from None
        update.entity.register_entry.CopyFrom(entry)
        sh.client.write_update(update)

    def _entry(self) -> p4runtime_pb2.RegisterEntry:
        try:
            return self.info.entry(self.index)
        except IndexError as error:
            raise sh.UserError(str(error)) from None

    @parse_p4runtime_error  # type: ignore[untyped-decorator]
    def _read(self, entry: p4runtime_pb2.RegisterEntry) -> Iterator["RegisterEntry"]:
        cells = list(read(sh.client.channel, sh.client.device_id, entry))
        return (copy(self)(index, self.info.decode(value)) for index, value in cells)


class _Registers:
    """The registers of the program. `registers()` lists them; `register_entry["NAME"]` is an entry of one."""

    def __call__(self) -> None:
        for each in registers_of(sh.context.p4info):
            print(f"{each.name}  {each.cells} x {'int' if each.signed else 'bit'}<{each.bits}>")

    def __getitem__(self, name: str) -> RegisterEntry:
        return RegisterEntry(name)

    def __repr__(self) -> str:
        return str(self.__doc__)

    def _ipython_key_completions_(self) -> list[str]:
        return [each.name for each in registers_of(sh.context.p4info)]


def _find(name: str) -> Register:
    try:
        return find(registers_of(sh.context.p4info), name)
    except KeyError as error:
        raise sh.UserError(error.args[0]) from None


class _NoPrompts(Prompts):  # type: ignore[misc]
    """Prints no prompts."""

    def in_prompt_tokens(self, cli: object = None) -> list[tuple[Any, str]]:
        """Before a command."""
        return []

    def continuation_prompt_tokens(
        self, cli: object = None, width: int | None = None
    ) -> list[tuple[Any, str]]:
        """Inside a block."""
        return []

    def out_prompt_tokens(self) -> list[tuple[Any, str]]:
        """Before the value of a command."""
        return []


class _Exit(ExitAutocall):  # type: ignore[misc]
    """`exit` and `quit` of a file of commands: with an exit status or without, or even without parentheses."""

    def __call__(self, status: object = None) -> NoReturn:
        raise SystemExit(status)


_NO_PYTHON = (SyntaxError, ValueError, OverflowError)
_CONTINUES = re.compile(r"\s|#|(else|elif|except|finally)\b")


def _statements(lines: Iterable[str], transform: Callable[[str], str]) -> Iterator[str]:
    """The statements of a file, each once it is read.

    One whose last line is indented ends before the next line that has code and is not indented. transform: makes Python
    of IPython's commands.
    """
    text = ""
    for line in lines:
        continues = _CONTINUES.match(line)
        if text and not continues and _is_whole(text, transform):
            yield text
            text = ""
        text += line
        if not continues and _is_whole(text.removesuffix("\n"), transform):
            yield text
            text = ""
    if text.strip():
        yield text


def _is_whole(text: str, transform: Callable[[str], str]) -> bool:
    """Whether text is a statement, or no Python. A block is one with an empty line."""
    if text.endswith("\\\n"):
        return False
    try:
        return codeop.compile_command(text) is not None
    except _NO_PYTHON:
        python = transform(text)  # ends with a new line
    try:
        return (
            codeop.compile_command(python if text.endswith("\n") else python.removesuffix("\n")) is not None
        )
    except _NO_PYTHON:
        return True


def _run_plain(user_ns: dict[str, Any], config: Any) -> int:
    """Run commands as start_ipython() does, with plain text as output. Returns the number of those that failed.

    A file of commands ends early with SystemExit: at its own, or at Ctrl-C.
    """
    shell = config.TerminalInteractiveShell
    shell.banner1 = shell.separate_in = ""
    shell.prompts_class, shell.colors = _NoPrompts, "NoColor"
    shell.simple_prompt, shell.term_title, shell.confirm_exit = True, False, False
    failed = []

    def report(_shell: object, _kind: object, error: Exception, _traceback: object, **_: object) -> None:
        failed.append(error)
        print(f"{type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)

    app = TerminalIPythonApp.instance(user_ns=user_ns, config=config)
    app.initialize([])
    app.shell.set_custom_exc((Exception,), report)
    if sys.stdin.isatty():
        app.start()
    else:
        try:
            _run_file(app.shell)
        except KeyboardInterrupt:
            raise SystemExit(_INTERRUPTED) from None
        except SystemExit as end:
            if end.code is not None:
                raise
    return len(failed)


def _run_file(shell: Any) -> None:
    """Run the statements of stdin. Raises SystemExit and KeyboardInterrupt of a statement."""
    shell.user_ns["exit"] = shell.user_ns["quit"] = _Exit(shell)
    # A line that is indented without a block must fail, as in Python: its condition may have failed.
    shell.input_transformer_manager.cleanup_transforms.remove(leading_indent)
    show = shell.showtraceback

    def show_others(*arguments: object, **options: object) -> None:
        if not isinstance(sys.exc_info()[1], (SystemExit, KeyboardInterrupt)):
            show(*arguments, **options)

    shell.showtraceback = show_others
    warnings.filterwarnings("ignore", "To exit: use ", UserWarning)
    for statement in _statements(sys.stdin, shell.transform_cell):
        error = shell.run_cell(statement).error_in_exec
        if isinstance(error, (SystemExit, KeyboardInterrupt)):
            raise error


def open_shell(options: Sequence[str]) -> int:
    """Run p4runtime-shell with its options until the user leaves it.

    If stdin or stdout is no terminal, the output is plain text, and an exception one line on stderr. Returns the number
    of commands that have failed then. Raises SystemExit where a file of commands does, and at Ctrl-C in it.
    """
    failed = 0
    end: SystemExit | None = None
    start = sh.start_ipython

    def start_with_registers(user_ns: dict[str, Any], config: Any, **settings: Any) -> None:
        nonlocal failed, end
        registers = _Registers()
        ours = {"RegisterEntry": RegisterEntry, "register_entry": registers, "registers": registers}
        if sys.stdin.isatty() and sys.stdout.isatty():
            start(user_ns=user_ns | ours, config=config, **settings)
        else:
            try:
                failed = _run_plain(user_ns | ours, config)
            except SystemExit as raised:  # main() has a connection to close
                end = raised

    sh.start_ipython = start_with_registers
    sys.argv = ["inagg-switch shell", *options]
    sh.main()
    if end is not None:
        raise end
    return failed
