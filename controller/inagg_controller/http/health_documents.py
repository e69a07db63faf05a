# SPDX-License-Identifier: Apache-2.0
"""The documents about switches, links and servers, and about injected loss."""

from inagg_contract.addresses import format_ip
from inagg_contract.documents import (
    Health,
    LinkHealth,
    Loss,
    LossList,
    PortRefusals,
    ServerHealth,
    SwitchHealth,
)
from inagg_controller.fabric.topology import Link
from inagg_controller.http.job_documents import aggregator_of
from inagg_controller.jobs.servers import Server
from inagg_controller.service import Service


def health_of(service: Service) -> Health:
    """The switches, their links and resources, and the servers."""
    switches = [_switch_health(service, name) for name in service.switches]
    jobs = sum(not job.ended for job in service.jobs.jobs.values())
    servers = tuple(_server_health(service, server) for server in service.jobs.servers.by_name.values())
    if not switches:
        return Health.model_construct(
            switch="none",
            switch_error=None,
            words=service.network.words,
            slot_versions=0,
            free_slot_versions=0,
            jobs=jobs,
            switches=(),
            links=(),
            servers=servers,
        )
    away = next((switch for switch in switches if switch.state != "connected"), switches[0])
    scarcest = min(switches, key=lambda switch: switch.free_slot_versions)
    return Health.model_construct(
        switch=away.state,
        switch_error=away.error,
        words=service.network.words,
        slot_versions=scarcest.slot_versions,
        free_slot_versions=scarcest.free_slot_versions,
        shared_slots=service.jobs.limits.shared_slots,
        aggregator=switches[0].aggregator,
        jobs=jobs,
        switches=tuple(switches),
        links=tuple(_link_health(service, link) for link in service.topology.links),
        servers=servers,
    )


def _server_health(service: Service, server: Server) -> ServerHealth:
    return ServerHealth.model_construct(
        name=server.name,
        ip=format_ip(server.ip),
        udp_port=server.udp_port,
        memory=server.memory,
        free_memory=server.free,
        jobs=len(service.jobs.servers.orders(server.name, server.instance)),
        unknown=server.unknown,
    )


def _switch_health(service: Service, name: str) -> SwitchHealth:
    connection, pool = service.switches[name].connection, service.jobs.switches.pools[name]
    return SwitchHealth.model_construct(
        name=name,
        state=connection.state,
        error=connection.error,
        slot_versions=pool.size,
        free_slot_versions=pool.free,
        aggregator=aggregator_of(service, name),
        refusals=tuple(
            PortRefusals(port=port, packets=dict(refusals.packets), ago_s=round(ago_s, 1))
            for port, (refusals, ago_s) in service.refusal_watch.recent(name).items()
        ),
    )


def _link_health(service: Service, link: Link) -> LinkHealth:
    return LinkHealth.model_construct(
        ends=(str(link.ends[0]), str(link.ends[1])),
        state=service.links.states[link],
        reason=service.links.reasons.get(link, ""),
        ordinary=link in service.jobs.switches.ordinary.links,
    )


def loss_list(service: Service) -> LossList:
    """The injected loss of all switches."""
    return LossList(
        loss=[
            Loss(
                switch=name,
                port=place.port,
                direction="ingress" if place.direction == "ingress" else "egress",
                probability=probability,
                traffic="aggregation" if place.aggregation else "other",
            )
            for name, managed in service.switches.items()
            for place, probability in managed.losses
        ]
    )
