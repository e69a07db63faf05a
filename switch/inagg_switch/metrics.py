# SPDX-License-Identifier: Apache-2.0
"""Serves the metrics of a running switch for Prometheus; docs/switch.md has their table."""

import socket
import threading
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from inagg_switch.connections import LimitedServer
from inagg_switch.p4runtime.server import ServerError, SwitchServer, host_and_port
from inagg_switch.ports import Ports


class SwitchMetrics(Collector):
    """Collects the metrics of one switch; their names begin with inagg_switch_."""

    def __init__(self, ports: Ports, server: SwitchServer) -> None:
        self._ports = ports
        self._server = server

    def collect(self) -> Iterator[Metric]:
        """Called by prometheus-client for each request."""
        yield InfoMetricFamily("inagg_switch", "The switch model.", {"version": version("inagg")})
        yield from self._of_ports()
        yield from self._of_program()
        yield from self._of_p4runtime()

    def _of_ports(self) -> Iterator[Metric]:
        labels = ("port", "interface")
        packets = CounterMetricFamily(
            "inagg_switch_port_packets", "Packets of a port.", labels=(*labels, "direction")
        )
        octets = CounterMetricFamily(
            "inagg_switch_port_bytes", "Bytes of a port.", labels=(*labels, "direction")
        )
        drops = CounterMetricFamily(
            "inagg_switch_port_drops", "Packets that a port dropped.", labels=(*labels, "reason")
        )
        impaired = CounterMetricFamily(
            "inagg_switch_port_impaired",
            "Packets that an impairment of a port has changed.",
            labels=(*labels, "direction", "effect"),
        )
        up = GaugeMetricFamily("inagg_switch_port_up", "Whether the interface is up.", labels=labels)
        for one in self._ports.statistics():
            which = (str(one.id), one.interface)
            packets.add_metric((*which, "rx"), one.rx_packets)
            packets.add_metric((*which, "tx"), one.tx_packets)
            octets.add_metric((*which, "rx"), one.rx_bytes)
            octets.add_metric((*which, "tx"), one.tx_bytes)
            up.add_metric(which, one.up)
            for reason, count in one.drops.items():
                drops.add_metric((*which, reason), count)
            for name, count in one.impaired.items():
                direction, _, effect = name.partition("_")
                impaired.add_metric((*which, direction, effect), count)
        yield from (packets, octets, drops, impaired, up)
        fan_out = self._ports.fan_out()
        yield GaugeMetricFamily(
            "inagg_switch_fan_out_devices", "Devices that clone multicasts to several ports.", fan_out.devices
        )
        yield CounterMetricFamily(
            "inagg_switch_fan_out_packets", "Multicasts that left once for several ports.", fan_out.packets
        )
        yield CounterMetricFamily(
            "inagg_switch_unknown_port_drops",
            "Packets that the program sent to a port that does not exist.",
            self._ports.unknown_port_drops(),
        )
        yield CounterMetricFamily(
            "inagg_switch_cpu_port_drops",
            "Packets to the controller that were dropped because too many waited.",
            self._ports.to_cpu_drops(),
        )

    def _of_program(self) -> Iterator[Metric]:
        running = self._server.running
        yield GaugeMetricFamily(
            "inagg_switch_program_loaded", "Whether a program runs.", float(running is not None)
        )
        yield CounterMetricFamily(
            "inagg_switch_program_loads", "Programs that have been started.", self._server.loads
        )
        entries = GaugeMetricFamily("inagg_switch_table_entries", "Entries of a table.", labels=("table",))
        if running is not None:
            for table in running.names.tables.values():
                entries.add_metric((table.name,), running.control.table_count(table.id))
        yield entries

    def _of_p4runtime(self) -> Iterator[Metric]:
        ended = CounterMetricFamily(
            "inagg_switch_p4runtime_calls",
            "P4Runtime calls that have ended, by gRPC status.",
            labels=("method", "status"),
        )
        for (method, status), count in sorted(self._server.calls.ended().items()):
            ended.add_metric((method, status), count)
        yield ended
        still = GaugeMetricFamily(
            "inagg_switch_p4runtime_open", "P4Runtime calls that have not ended.", labels=("method",)
        )
        for method in ("Read", "StreamChannel", "Write"):
            still.add_metric((method,), self._server.calls.open(method))
        yield still


class MetricsServer:
    """Serves /metrics over HTTP."""

    def __init__(
        self, address: str, metrics: SwitchMetrics, *, most_connections: int = 32, request_s: float = 10.0
    ) -> None:
        """Serve at "HOST:PORT". Raises ServerError if the address cannot be bound.

        A connection beyond `most_connections` is closed at once, every other after `request_s` seconds.
        """
        host, port = host_and_port(address)
        registry = CollectorRegistry()
        registry.register(metrics)
        try:
            *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self._server = _Server((str(place[0]), port), most_connections, request_s)
        except OSError as error:
            raise ServerError(f"cannot serve metrics at {address}: {error.strerror or error}") from None
        self._server.set_app(make_wsgi_app(registry))
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True, name="metrics")
        self._thread.start()
        self.port = int(self._server.server_port)

    def stop(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(LimitedServer, WSGIServer):
    """A WSGI server with a limit of time, too."""

    def __init__(self, address: tuple[str, int], most: int, request_s: float) -> None:
        self._request_s = request_s
        super().__init__(address, _Handler, most=most)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that has gone or was disconnected. (wsgiref reports errors of the application.)"""

    def service_actions(self) -> None:
        """End connections whose time is over. serve_forever() calls this twice a second."""
        self.end_connections(self._request_s)


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Do not log requests."""
