# SPDX-License-Identifier: Apache-2.0
"""python deploy/grafana: writes the dashboard beside this file, inagg.json, from the panels below.

A panel is a title, a unit of Grafana, what it tells, and its queries with their legends. Metrics: docs/counters.md and
docs/switch.md. `$job` and `$interval` are replaced by Grafana.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("inagg.json")
RATE = "$__rate_interval"
OF_JOB = '{name=~"$job"}'
REFUSED = "aggregator_forged|source_refused|vlan_tagged|beacon_refused"
AGAIN = "result_resent|partial_resent|query_again|duplicate_pending|slot_flushed"
WRONG = "malformed|not_admitted|wrong_epoch|ahead|no_receiver|no_server|no_parent|result_unexpected"


@dataclass(frozen=True)
class Panel:
    """shape: of Grafana. wide: of 24 columns."""

    title: str
    tells: str
    queries: Mapping[str, str]  # legend: PromQL
    unit: str = "short"
    shape: str = "timeseries"
    wide: int = 8


def packets(counters: str) -> str:
    """Packets a second of these counters of the P4 program, by counter and switch."""
    return f'sum by (counter, switch) (rate(inagg_switch_packets_total{{counter=~"{counters}"}}[{RATE}]))'


ROWS: Mapping[str, Iterable[Panel]] = {
    "Jobs": (
        Panel("Jobs", "By state.", {"{{state}}": "sum by (state) (inagg_jobs)"}, shape="stat", wide=6),
        Panel(
            "Switches connected",
            "A switch that is away takes its jobs to another way.",
            {"{{switch}}": "inagg_switch_connected"},
            shape="stat",
            wide=6,
        ),
        Panel(
            "Links between switches",
            "1: beacons pass both ways.",
            {"{{end}} - {{other_end}}": "inagg_link_up"},
            shape="stat",
            wide=6,
        ),
        Panel(
            "Ranks",
            "Of active jobs. A missing rank has not registered.",
            {"{{name}} {{state}}": f"sum by (name, state) (inagg_job_ranks{OF_JOB})"},
            shape="stat",
            wide=6,
        ),
        Panel(
            "Sums of a rank",
            "All ranks of a job have the same rate: that of the slowest.",
            {"{{name}} rank {{rank}}": f"rate(inagg_rank_sums_total{OF_JOB}[{RATE}])"},
            unit="ops",
        ),
        Panel(
            "Share of time that a rank waits for others",
            "The rank with the smallest share is the one that the others wait for.",
            {"{{name}} rank {{rank}}": f"rate(inagg_rank_waited_seconds_total{OF_JOB}[{RATE}])"},
            unit="percentunit",
        ),
        Panel(
            "Age of heartbeats",
            "A job fails when a rank's age passes the time-out.",
            {"{{name}} rank {{rank}}": f"inagg_rank_heartbeat_age_seconds{OF_JOB}"},
            unit="s",
        ),
        Panel(
            "Changes of way",
            "What summed for the job was lost, and sums go on elsewhere (docs/protocol.md, 7.6).",
            {"{{name}}": f"sum by (name) (increase(inagg_job_changes_total{OF_JOB}[{RATE}]))"},
        ),
        Panel(
            "Chunks, by where they were summed",
            "Of jobs on shared slots and servers.",
            {"{{name}} {{summed_in}}": f"rate(inagg_job_chunks_total{OF_JOB}[{RATE}])"},
            unit="ops",
        ),
        Panel(
            "Contributions of a rank",
            "Payload and headers that the switches admitted.",
            {"{{name}} rank {{rank}}": f"rate(inagg_rank_admitted_bytes_total{OF_JOB}[{RATE}])"},
            unit="Bps",
        ),
    ),
    "Switches": (
        Panel(
            "Contributions in",
            "That started a sum, were added to one, or completed one.",
            {
                "{{switch}}": "sum by (switch) (rate(inagg_switch_bytes_total"
                f'{{counter=~"started|added|completed|slot_taken|slot_added|slot_combined"}}[{RATE}]))'
            },
            unit="Bps",
        ),
        Panel(
            "Results out",
            "",
            {
                "{{switch}}": "sum by (switch) (rate(inagg_switch_bytes_total"
                f'{{counter=~"result_sent|result_forwarded"}}[{RATE}]))'
            },
            unit="Bps",
        ),
        Panel(
            "Sent again",
            "Packets were lost, or a rank was late.",
            {"{{switch}} {{counter}}": packets(AGAIN)},
            unit="pps",
        ),
        Panel(
            "Slots that can be leased",
            "",
            {"{{switch}} {{state}}": "inagg_pool_slot_versions"},
        ),
        Panel(
            "Shared slots: collided and lost",
            "Jobs compete for slots: raise --shared-slots, or give priorities.",
            {"{{switch}} {{counter}}": packets("slot_collided|slot_evicted|slot_expired")},
            unit="pps",
        ),
        Panel(
            "Packets that met a queue",
            "Marked because a port's queue was longer than --mark-queue.",
            {"{{switch}} {{counter}}": packets("congestion_marked")},
            unit="pps",
        ),
    ),
    "Trouble": (
        Panel(
            "Refused at edge ports",
            "An attack, or a wrong address or cable.",
            {
                "{{switch}} port {{port}} {{counter}}": "sum by (switch, port, counter) (increase("
                f'inagg_switch_packets_total{{counter=~"{REFUSED}"}}[5m]))'
            },
        ),
        Panel(
            "Dropped packets of the protocol",
            "Damaged or foreign packets, or the end of a job.",
            {"{{switch}} {{counter}}": packets(WRONG)},
            unit="pps",
        ),
        Panel(
            "Requests answered with an error",
            "Of the controller's API, by HTTP status.",
            {"{{status}}": f"sum by (status) (rate(inagg_api_refusals_total[{RATE}]))"},
            unit="reqps",
        ),
        Panel(
            "Injected loss",
            "",
            {"{{switch}} port {{port}} {{direction}}": "inagg_loss_probability > 0"},
            unit="percentunit",
        ),
        Panel(
            "Program pushed again",
            "A switch was restarted.",
            {"{{switch}}": f"increase(inagg_switch_pipeline_pushes_total[{RATE}])"},
        ),
        Panel(
            "Memory of registered servers",
            "",
            {"{{server}} {{state}}": "inagg_server_memory_bytes"},
            unit="bytes",
        ),
    ),
    "Processes (switches need --metrics)": (
        Panel(
            "Ports of the switch model",
            "",
            {
                "{{instance}} {{interface}} {{direction}}": "sum by (instance, interface, direction) "
                f"(rate(inagg_switch_port_bytes_total[{RATE}]))"
            },
            unit="Bps",
        ),
        Panel(
            "Packets that ports dropped",
            "",
            {
                "{{instance}} {{interface}} {{reason}}": "sum by (instance, interface, reason) "
                f"(rate(inagg_switch_port_drops_total[{RATE}]))"
            },
            unit="pps",
        ),
        Panel(
            "Processor time",
            "1: one processor.",
            {"{{instance}}": f"rate(process_cpu_seconds_total[{RATE}])"},
        ),
        Panel("Resident memory", "", {"{{instance}}": "process_resident_memory_bytes"}, unit="bytes"),
    ),
}


def targets(panel: Panel) -> list[dict[str, Any]]:
    """Grafana's form of the queries."""
    return [
        {"refId": chr(ord("A") + index), "expr": query, "legendFormat": legend}
        for index, (legend, query) in enumerate(panel.queries.items())
    ]


def panels() -> Iterable[dict[str, Any]]:
    """Rows and their panels, from left to right, in Grafana's grid of 24 columns."""
    source = {"type": "prometheus", "uid": "${source}"}
    number, top = 0, 0
    for title, of_row in ROWS.items():
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "gridPos": {"x": 0, "y": top, "w": 24, "h": 1},
            "panels": [],
        }
        top, left = top + 1, 0
        height = 0
        for panel in of_row:
            if left + panel.wide > 24:
                top, left = top + height, 0
            height = 4 if panel.shape == "stat" else 8
            number += 1
            yield {
                "id": number,
                "type": panel.shape,
                "title": panel.title,
                "description": panel.tells,
                "datasource": source,
                "gridPos": {"x": left, "y": top, "w": panel.wide, "h": height},
                "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
                "targets": targets(panel),
            }
            left += panel.wide
        top += height


def dashboard() -> dict[str, Any]:
    """As Grafana imports it."""
    return {
        "uid": "inagg",
        "title": "inagg",
        "tags": ["inagg"],
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {
            "list": [
                {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
                {
                    "name": "job",
                    "label": "Job",
                    "type": "query",
                    "datasource": {"type": "prometheus", "uid": "${source}"},
                    "query": "label_values(inagg_job_slots, name)",
                    "refresh": 2,
                    "includeAll": True,
                    "allValue": ".*",
                    "multi": True,
                    "current": {"text": "All", "value": "$__all"},
                },
            ]
        },
        "panels": list(panels()),
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(dashboard(), indent=1) + "\n")
