# SPDX-License-Identifier: Apache-2.0
"""BMv2's simple_switch as a child process.

Packets go over a nanomsg socket, one at a time, in order, on any port. Commands go through simple_switch_CLI.

    with Bmv2(compile_p4("prog.p4", folder)) as switch:
        switch.command("table_add ...")
        switch.process(1, frame, 2)      # [(port, frame), ...], when two frames are expected

BMv2 does not report when it has processed a packet. process() waits for the number of frames expected, at most
`patience` seconds for each. rest() returns the frames that come later.
"""

import contextlib
import ctypes
import ctypes.util
import itertools
import json
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.bmv2_commands import bmv2_command
from tests.free_ports import free_port

_PACKET_IN, _PACKET_OUT = 3, 4
_HEADER = struct.Struct("iii")
# Topic, device, context, list, buffer, number of samples. The samples follow, all of the same size.
_LEARNED = struct.Struct("=4sQiiQI")
_AF_SP, _NN_PAIR, _NN_SOL_SOCKET, _NN_RCVTIMEO = 1, 16, 0, 5
_NN_SUB, _NN_SUB_SUBSCRIBE = 33, 1
_NN_MSG = ctypes.c_size_t(-1).value
_numbers = itertools.count()


class Bmv2Error(Exception):
    """p4c or BMv2 is missing, refuses the program or a command, or has died."""


def available() -> bool:
    """Whether p4c and simple_switch are on PATH, and libnanomsg where the loader finds it."""
    return (
        bmv2_command("p4c-bm2-ss") is not None
        and bmv2_command("simple_switch") is not None
        and ctypes.util.find_library("nanomsg") is not None
    )


def compile_p4(program: Path, folder: Path, options: Sequence[str] = ()) -> Path:
    """Compiles a program with p4c into BMv2's JSON in `folder`. Raises Bmv2Error with p4c's message."""
    config = folder / f"{program.stem}.json"
    done = subprocess.run(
        ["p4c-bm2-ss", *options, "-o", str(config), str(program)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0 or not config.exists():
        raise Bmv2Error(f"p4c-bm2-ss on {program}: {done.stderr}")
    return config


class _Socket:
    """A nanomsg PAIR socket; with a topic, a SUB socket."""

    def __init__(self, address: str, topic: bytes = b"") -> None:
        name = ctypes.util.find_library("nanomsg")
        if name is None:
            raise Bmv2Error("libnanomsg is not installed")
        self._nn = ctypes.CDLL(name)
        self._nn.nn_recv.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        self._nn.nn_send.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int)
        self._nn.nn_freemsg.argtypes = (ctypes.c_void_p,)
        self._number = self._nn.nn_socket(_AF_SP, _NN_SUB if topic else _NN_PAIR)
        if topic:
            self._nn.nn_setsockopt(self._number, _NN_SUB, _NN_SUB_SUBSCRIBE, topic, len(topic))
        if self._number < 0 or self._nn.nn_connect(self._number, address.encode()) < 0:
            raise Bmv2Error(f"cannot connect to {address}")

    def send(self, data: bytes) -> None:
        if self._nn.nn_send(self._number, data, len(data), 0) != len(data):
            raise Bmv2Error("cannot send to simple_switch")

    def receive(self, timeout: float) -> bytes | None:
        """The next message; None if no message comes in `timeout` seconds."""
        milliseconds = ctypes.c_int(max(1, int(timeout * 1000)))
        self._nn.nn_setsockopt(
            self._number,
            _NN_SOL_SOCKET,
            _NN_RCVTIMEO,
            ctypes.byref(milliseconds),
            ctypes.sizeof(milliseconds),
        )
        message = ctypes.c_void_p()
        length = self._nn.nn_recv(self._number, ctypes.byref(message), _NN_MSG, 0)
        if length < 0:
            return None
        data = ctypes.string_at(message, length)
        self._nn.nn_freemsg(message)
        return data

    def close(self) -> None:
        self._nn.nn_close(self._number)


class Bmv2:
    """A running simple_switch. close() or the end of a `with` ends it. Only one thread may use it."""

    def __init__(self, config: Path, patience: float = 2.0) -> None:
        self._patience = patience
        self._folder = Path(tempfile.mkdtemp(prefix="inagg-bmv2-"))
        self._log = self._folder / "log"
        self._thrift = free_port()
        address = f"ipc://{self._folder}/packets"
        command = [
            "simple_switch", "--packet-in", address, "--thrift-port", str(self._thrift),
            "--device-id", str(os.getpid() * 100 % 1_000_000_000 + next(_numbers) % 100),
            "--notifications-addr", f"ipc://{self._folder}/notifications", "--log-console", "-L", "warn", str(config),
        ]  # fmt: skip
        self._socket: _Socket | None = None
        self._learned: _Socket | None = None
        self._digests = [one["id"] for one in json.loads(config.read_text())["learn_lists"]]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder)
        try:
            self._wait_until_ready()
            self._socket = _Socket(address)
            if self._digests:
                self._learned = _Socket(f"ipc://{self._folder}/notifications", b"LEA")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Bmv2":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the switch and removes its files."""
        for one in (self._socket, self._learned):
            if one is not None:
                one.close()
        self._socket = self._learned = None
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def log(self) -> str:
        """The output of simple_switch so far."""
        return self._log.read_text(errors="replace")

    def _wait_until_ready(self) -> None:
        """Waits for the Thrift server, which starts last."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            self._alive()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._thrift), 1):
                return
            time.sleep(0.02)
        raise Bmv2Error("simple_switch does not start")

    def _alive(self) -> None:
        if self._process.poll() is not None:
            raise Bmv2Error(f"simple_switch has ended ({self._process.returncode}): {self.log[-2000:]}")

    def command(self, *commands: str) -> str:
        """Runs commands of simple_switch_CLI and returns what it prints. Raises Bmv2Error if one is refused."""
        if not commands:
            return ""
        done = subprocess.run(
            ["simple_switch_CLI", "--thrift-port", str(self._thrift)], input="\n".join(commands) + "\n",
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        refused = [s for s in done.stdout.splitlines() if "Invalid" in s or "Error" in s or "Unknown" in s]
        if done.returncode != 0 or refused:
            raise Bmv2Error(f"simple_switch_CLI: {refused or done.stdout + done.stderr}")
        return done.stdout

    def add_to_value_set(self, name: str, value: bytes) -> None:
        """Another member of a parser value set. simple_switch_CLI has pvs_add, but it fails with a Python of today, so
        this is its Thrift call."""
        method = b"standard:bm_parse_vset_add"
        call = struct.pack(">II", 0x80010001, len(method)) + method + struct.pack(">I", 0)
        call += struct.pack(">bhi", 8, 1, 0)  # i32 context
        for number, text in ((2, name.encode()), (3, value)):
            call += struct.pack(">bhI", 11, number, len(text)) + text
        with socket.create_connection(("127.0.0.1", self._thrift), 10) as connection:
            connection.sendall(call + b"\0")
            answer = connection.recv(4096)
        if answer[: 4 + 4 + len(method) + 4 + 1] != struct.pack(">II", 0x80010002, len(method) - 9) + method[
            9:
        ] + bytes(5):
            raise Bmv2Error(f"cannot add {value.hex()} to value set {name}: {answer!r}")

    def send(self, port: int, frame: bytes) -> None:
        """Sends a frame into `port`."""
        assert self._socket is not None
        self._socket.send(_HEADER.pack(_PACKET_IN, port, len(frame)) + frame)

    def receive(self, timeout: float) -> tuple[int, bytes] | None:
        """(port, frame) of the next frame that leaves; None if no frame leaves in `timeout` seconds."""
        assert self._socket is not None
        message = self._socket.receive(timeout)
        if message is None:
            return None
        kind, port, length = _HEADER.unpack_from(message)
        assert kind == _PACKET_OUT
        return port, message[_HEADER.size : _HEADER.size + length]

    def process(self, port: int, frame: bytes, expected: int) -> list[tuple[int, bytes]]:
        """Sends a frame and returns the first `expected` frames that leave; fewer if they do not come in time."""
        self.send(port, frame)
        out: list[tuple[int, bytes]] = []
        while len(out) < expected:
            received = self.receive(self._patience)
            if received is None:
                self._alive()
                break
            out.append(received)
        return out

    def rest(self, timeout: float = 0.3) -> list[tuple[int, bytes]]:
        """All further frames that leave, until no frame has left for `timeout` seconds."""
        out = []
        while (received := self.receive(timeout)) is not None:
            out.append(received)
        return out

    def digests(self, timeout: float = 1.5) -> list[tuple[int, bytes]]:
        """Number (in the order of the program) and data of each digest, until none has come for `timeout` seconds.

        Digests of the same number are in order. BMv2 collects digests for a second, and sends equal digests once.
        """
        found = []
        while self._learned is not None and (message := self._learned.receive(timeout)) is not None:
            *_, number, _, samples = _LEARNED.unpack_from(message)
            data = message[_LEARNED.size :]
            size = len(data) // samples
            place = self._digests.index(number)
            found += [(place, data[i * size : (i + 1) * size]) for i in range(samples)]
        return found
