# SPDX-License-Identifier: Apache-2.0
"""hub.cpp, a program without P4: it sends each frame to all other ports."""

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from inagg_switch._ports import ProgramControl
from tests.switch import NATIVE


class Hub:
    """hub.cpp, loaded and connected to some ports; a LoadedProgram of inagg_switch.ports."""

    def __init__(self, library: Path, ports: list[int]) -> None:
        class Api(ctypes.Structure):
            _fields_ = (
                ("abi_version", ctypes.c_uint32),
                ("one_thread", ctypes.c_char_p),
                ("steering", ctypes.c_void_p),
                (
                    "create",
                    ctypes.CFUNCTYPE(
                        ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p
                    ),
                ),
                ("destroy", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
            )

        self._library = ctypes.CDLL(str(library))
        self._library.isw_program_v1.restype = ctypes.POINTER(Api)
        api = self._library.isw_program_v1()
        self.api_address = ctypes.cast(api, ctypes.c_void_p).value or 0
        self.handle: int = api.contents.create(0, 1, None, None)
        self.threads = 1
        self._destroy = api.contents.destroy
        ProgramControl(self.api_address, self.handle).multicast_set(1, [(port, 0) for port in ports])

    def close(self) -> None:
        self._destroy(self.handle)


MakeHub: TypeAlias = Callable[[list[int]], Hub]


def compile_hub(folder: Path) -> Path:
    """The library, compiled from hub.cpp into `folder`."""
    output = folder / "hub.so"
    source = Path(__file__).with_name("hub.cpp")
    command = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", f"-I{NATIVE}", str(source), "-o", str(output)]
    subprocess.run(command, check=True, timeout=120)
    return output
