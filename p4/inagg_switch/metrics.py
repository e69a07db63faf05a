"""What a running switch tells Prometheus, at the moment it is asked."""

from collections.abc import Iterator
from importlib.metadata import version

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from inagg_switch.ports import Ports
from inagg_switch.server import ServerError, SwitchServer, host_and_port


class SwitchMetrics(Collector):
    """The metrics of one switch; names begin with inagg_switch_."""

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
        octets = CounterMetricFamily("inagg_switch_port_bytes", "Their bytes.", labels=(*labels, "direction"))
        drops = CounterMetricFamily(
            "inagg_switch_port_drops", "Packets that a port dropped.", labels=(*labels, "reason")
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
        yield from (packets, octets, drops, up)
        yield CounterMetricFamily(
            "inagg_switch_unknown_port_drops",
            "Packets that the program sent to a port that there is not.",
            self._ports.unknown_port_drops(),
        )
        yield CounterMetricFamily(
            "inagg_switch_cpu_port_drops",
            "Packets to the controller that did not fit.",
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
    """Serves /metrics."""

    def __init__(self, address: str, metrics: SwitchMetrics) -> None:
        """At "HOST:PORT". Raises ServerError if it cannot be had."""
        host, port = host_and_port(address)
        registry = CollectorRegistry()
        registry.register(metrics)
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise ServerError(f"cannot serve metrics at {address}: {error.strerror or error}") from None
        self.port = int(self._server.server_port)

    def stop(self) -> None:
        """Ends it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
