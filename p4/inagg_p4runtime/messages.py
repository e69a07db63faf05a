# SPDX-License-Identifier: Apache-2.0
"""P4Runtime's messages beside any protobuf from 3.20 on.

The package p4runtime brings modules that an old protoc generated; from protobuf 4 on they end in "Descriptors cannot be
created directly". Each of them holds the description of its messages as bytes. Of these, protobuf makes the classes
here, as modules of a newer protoc have it do. The modules get their usual names: whoever imports them afterwards,
p4runtime-shell too, gets these.
"""

import ast
import importlib
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

# In this order: each uses those before it.
_MODULES = ("p4.config.v1.p4types_pb2", "p4.config.v1.p4info_pb2", "p4.v1.p4data_pb2", "p4.v1.p4runtime_pb2")
_DESCRIPTION = re.compile(r"^  serialized_pb=(b'.*')$", re.MULTILINE)


def _load_all() -> None:
    # What they import.
    importlib.import_module("google.protobuf.any_pb2")
    importlib.import_module("google.rpc.status_pb2")
    for name in _MODULES:
        if name not in sys.modules:  # else they work as they are
            _load(name)


def _load(name: str) -> None:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ImportError(f"no module {name}: the package p4runtime is not installed", name=name)
    description = _DESCRIPTION.search(Path(spec.origin).read_text())
    if description is None:  # of a newer protoc
        importlib.import_module(name)
        return
    module = importlib.util.module_from_spec(spec)
    _fill(module, ast.literal_eval(description[1]))
    sys.modules[name] = module
    package, _, last = name.rpartition(".")
    setattr(sys.modules[package], last, module)


def _fill(module: ModuleType, description: bytes) -> None:
    # The calls of a module that protoc generates, from protobuf 3.20 to 7.
    from google.protobuf import descriptor_pool
    from google.protobuf.internal import builder

    file = descriptor_pool.Default().AddSerializedFile(description)
    vars(module)["DESCRIPTOR"] = file
    builder.BuildMessageAndEnumDescriptors(file, vars(module))
    builder.BuildTopDescriptorsAndMessages(file, module.__name__, vars(module))


_load_all()
