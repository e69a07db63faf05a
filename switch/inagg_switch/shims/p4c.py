# SPDX-License-Identifier: Apache-2.0
"""p4c-bm2-ss, and p4c for the target bmv2: they write the device config and the P4Info that the switch takes.

The device config is JSON with the preprocessed source, so `simple_switch` compiles it to native code when it starts.
p4c writes PROGRAM.json and PROGRAM.p4i into the folder -o; p4c-bm2-ss writes the file -o.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from google.protobuf import json_format, text_format
from p4.config.v1.p4info_pb2 import P4Info

from inagg_switch.cli.options import UsageError, check_readable, parse_defines
from inagg_switch.compiler import check_file
from inagg_switch.errors import CompileError, SwitchError
from inagg_switch.p4runtime.device_config import as_json
from inagg_switch.shims.options import Options, parse

_ENCODERS: dict[str, Callable[[P4Info], bytes]] = {
    "text": lambda info: str(text_format.MessageToString(info)).encode(),
    "json": lambda info: (json_format.MessageToJson(info, preserving_proto_field_name=True) + "\n").encode(),
    "binary": lambda info: bytes(info.SerializeToString(deterministic=True)),
}
# By p4c's rules (control-plane/p4RuntimeSerializer.cpp).
_FORMATS = {".txt": "text", ".txtpb": "text", ".json": "json", ".bin": "binary", ".binpb": "binary"}
_STANDARDS = ("p4-16", "p4_16", "16")


def _parser(name: str) -> Options:
    parser = Options(name, "Compile a P4_16 program for v1model to the device config of inagg's switch.")
    parser.add_argument("-o", dest="output", metavar="DIR" if name == "p4c" else "FILE", type=Path)
    parser.add_argument("--std", "--p4v", "-x", dest="standard", default="p4-16")
    parser.add_argument("--arch", "-a", default="v1model")
    parser.add_argument("--target", "-b", default="bmv2")
    parser.add_argument("-I", dest="include", metavar="DIR", type=Path, action="append", default=[])
    parser.add_argument("-D", dest="define", metavar="NAME[=VALUE]", action="append", default=[])
    parser.add_argument(
        "--p4runtime-files", "--p4runtime-file", dest="p4info", metavar="FILE[,FILE]", default=""
    )
    parser.add_argument("--p4runtime-format", dest="format", choices=("text", "json", "binary"))
    parser.add_without_effect("-g", "--debug", "-O0", "-O1", "-O2", "-O3", "--emit-externs", "-w")
    parser.add_without_effect("--maxErrorCount", "-T", value=True)
    parser.add_refused("-U", "-E", "--pp", "--toJSON", "--fromJSON", "--p4runtime-entries-files")
    return parser


def main(name: str, arguments: Sequence[str]) -> int:
    """Compile as the command line says; return the exit status."""
    try:
        _compile(name, parse(_parser(name), arguments, "PROGRAM.p4"))
    except CompileError as error:
        print(error, file=sys.stderr)  # starts with file:line:column
        return 1
    except SwitchError as error:
        print(f"{name}: error: {error}", file=sys.stderr)
        return 1
    return 0


def _compile(name: str, options: argparse.Namespace) -> None:
    if options.file is None:
        raise UsageError("name the program: PROGRAM.p4")
    program = Path(options.file)
    check_readable(program)
    if options.standard.lower() not in _STANDARDS:
        raise UsageError(f"--std {options.standard}: only P4_16 compiles here")
    if options.arch != "v1model" or options.target not in ("bmv2", "bmv2-ss-p4org"):
        raise UsageError(f"target {options.target}, architecture {options.arch}: only bmv2 with v1model")
    infos = [(Path(text), _format(text, options.format)) for text in options.p4info.split(",") if text]
    text, info = check_file(program, parse_defines(options.define), options.include)
    try:
        for path, encoding in infos:
            path.write_bytes(_ENCODERS[encoding](info))
        if name == "p4c":
            folder = options.output or Path()
            folder.mkdir(parents=True, exist_ok=True)
            (folder / program.with_suffix(".p4i").name).write_text(text)
            (folder / program.with_suffix(".json").name).write_text(as_json(text))
        elif options.output is not None:
            options.output.write_text(as_json(text))
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}") from None


def _format(path: str, given: str | None) -> str:
    found = given or _FORMATS.get(Path(path).suffix)
    if found is None:
        raise UsageError(
            f"--p4runtime-files {path}: name it *{', *'.join(_FORMATS)}, or give --p4runtime-format"
        )
    return found
