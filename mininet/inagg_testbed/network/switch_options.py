# SPDX-License-Identifier: Apache-2.0
"""What a user may ask of a testbed's switches beside their program: the options of `inagg up` for them."""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path

from inagg_contract.constants import CPU_PORT
from inagg_testbed.errors import ConfigurationError
from inagg_testbed.network import impairments
from inagg_testbed.network.fabric import CONTROL_PORT, Fabric
from inagg_testbed.network.requirements import BridgeKind, SwitchKind

WORDS_MACRO = "WORDS"  # of inagg.p4


@dataclass(frozen=True, kw_only=True)
class SwitchOptions:
    """Options of `inagg-switch run` that a user gives to all switches of a testbed.

    pcap: folder for captures; with several switches it gets a folder for each. threads: None leaves it to each switch.
    impair: impairments of links, as `impairments.of_ports` reads them.
    """

    define: Sequence[str] = ()
    include: Sequence[Path] = ()
    cpu_port: int | None = None
    trace: bool = False
    pcap: Path | None = None
    threads: int | None = None
    impair: Sequence[str] = ()

    def check(self, kind: SwitchKind, fabric: Fabric, *, controlled: bool) -> None:
        """Raise ConfigurationError if the kind of switch, its ports, or inagg's controller do not allow the options."""
        if self.impair:
            impairments.refuse_impossible(kind)
            impairments.of_ports(fabric, self.impair)
        if kind != "model" and self.threads is not None:
            raise ConfigurationError(f"--threads is for the switch model; --switch {kind} has no such option")
        if self.threads is not None and self.threads.bit_count() != 1:
            raise ConfigurationError(f"--threads {self.threads}: a switch has 1, 2, 4, ... 64 threads")
        if kind == "bridge" and self != NO_OPTIONS:
            raise ConfigurationError(
                "--cpu-port, --define, --include, --trace and --pcap need a switch that runs P4 programs; a bridge"
                " does not"
            )
        if controlled and self.cpu_port not in (None, CPU_PORT):
            raise ConfigurationError(
                f"--cpu-port {self.cpu_port}: inagg's controller has port {CPU_PORT}; use --no-controller with a"
                " program for another"
            )
        taken = [port for port in fabric.neighbours if port.port == self.cpu_port]
        if not controlled and taken and self.cpu_port != CONTROL_PORT:
            raise ConfigurationError(
                f"--cpu-port {self.cpu_port}: {taken[0]} is the port of {fabric.neighbours[taken[0]]}"
            )
        if controlled and any(text.partition("=")[0] == WORDS_MACRO for text in self.define):
            raise ConfigurationError(f"-D {WORDS_MACRO}: the testbed sets it for inagg.p4, from --mtu")

    @property
    def compiling(self) -> list[str]:
        """The compiler's part; p4c's options have the same letters."""
        return [*(f"-D{text}" for text in self.define), *(f"-I{folder}" for folder in self.include)]

    @property
    def threads_option(self) -> list[str]:
        """The option of `inagg-switch run` and `inagg-switch compile`."""
        return [] if self.threads is None else ["--threads", str(self.threads)]

    @property
    def bridges(self) -> BridgeKind:
        """What forwards on gloo's own links: with any --impair, also off, what can be impaired."""
        return "model" if self.impair else "linux"

    def impair_options(self, fabric: Fabric, switch: str, ports: Container[int]) -> list[str]:
        """The options of `inagg-switch run` for the impairments of a switch that has these ports, or of the bridge that
        stands in for it."""
        if not self.impair:
            return []
        found = impairments.of_ports(fabric, self.impair)
        own = [(at.port, way, spec) for (at, way), spec in found.items() if at.switch == switch]
        return [
            word for port, way, spec in own if port in ports for word in ("--impair", f"{port}:{way}:{spec}")
        ]

    def captures(self, fabric: Fabric, switch: str) -> Path | None:
        """The folder for a switch's captures."""
        return self.pcap if self.pcap is None or fabric.is_star else self.pcap / switch

    def capture_files(self, fabric: Fabric) -> list[Path]:
        """The folders and files that `inagg-switch run` makes for captures."""
        found = []
        for switch in fabric.switches:
            if (folder := self.captures(fabric, switch)) is not None:
                names = [f"port{n}_{way}.pcap" for n in fabric.ports(switch) for way in ("in", "out")]
                found += [folder, *(folder / name for name in names)]
        return found


NO_OPTIONS = SwitchOptions()
