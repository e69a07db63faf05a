# SPDX-License-Identifier: Apache-2.0
"""SetForwardingPipelineConfig: the running and the saved program, and the actions that change them.

A saved program is loaded, but no packet reaches it. Writes after VERIFY_AND_SAVE go to it. So COMMIT, which the
specification describes as a replay of those writes, only swaps the programs.
"""

import logging
from collections.abc import Callable
from typing import TypeAlias

from p4.v1 import p4runtime_pb2

from inagg_switch.errors import SwitchError
from inagg_switch.p4runtime.device_config import source_of
from inagg_switch.p4runtime.entities import profiles
from inagg_switch.p4runtime.entities.entries import entry_key
from inagg_switch.p4runtime.entities.names import Table
from inagg_switch.p4runtime.entities.replication import parse_replicas
from inagg_switch.p4runtime.entities.target import Target
from inagg_switch.p4runtime.entities.value_sets import write_value_set
from inagg_switch.p4runtime.errors import Code, RequestError, invalid
from inagg_switch.p4runtime.same_pipeline import check_same_pipeline, pipeline_of
from inagg_switch.program.abi import ACTION
from inagg_switch.program.externs import MeterConfig
from inagg_switch.program.running import Program

logger = logging.getLogger(__name__)

Request: TypeAlias = p4runtime_pb2.SetForwardingPipelineConfigRequest


class Pipeline:
    """The running and the saved target of a device. The service's lock guards it, except for prepare()."""

    def __init__(
        self,
        compile_program: Callable[[str], Program],
        install: Callable[[Program], None],
        now: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """compile_program: loads preprocessed P4 source. install: makes the ports run a program. now: the ports'
        time, in seconds."""
        self._compile = compile_program
        self._install = install
        self._now = now
        self.on_run: Callable[[Target], None] = lambda _: None  # called with a target before packets reach it
        self.running: Target | None = None
        self.saved: Target | None = None
        self.loads = 0  # programs that have been started

    @property
    def current(self) -> Target | None:
        """The target of reads and writes: the saved one if there is one, else the running one."""
        return self.saved or self.running

    def start_with(self, program: Program, source: str) -> None:
        """Run a program that did not come through P4Runtime."""
        config = p4runtime_pb2.ForwardingPipelineConfig(
            p4info=program.p4info, p4_device_config=source.encode()
        )
        self._run(Target(program, config, self._now))

    def restart(self) -> None:
        """Run the running program again, from its initial state."""
        assert self.running is not None
        config = self.running.config
        self._run(Target(self._compile(source_of(config.p4_device_config)), config, self._now))

    def prepare(self, request: Request) -> Target | None:
        """Compile the program of a request, which takes seconds.

        Changes nothing, needs no lock. Raises RequestError.
        """
        if request.action == Request.COMMIT:
            if request.HasField("config"):
                raise invalid("COMMIT takes no config: it runs the saved one")
            return None
        if request.action not in Request.Action.values() or request.action == Request.UNSPECIFIED:
            raise invalid("the request has no action")
        if not request.HasField("config"):
            raise invalid("the request has no config")
        source = source_of(request.config.p4_device_config)
        try:
            program = self._compile(source)
        except SwitchError as error:
            raise invalid(f"the device config does not compile: {error}") from error
        check_same_pipeline(request.config.p4info, program.p4info)
        config = p4runtime_pb2.ForwardingPipelineConfig()
        config.CopyFrom(request.config)
        return Target(program, config, self._now)

    def apply(self, request: Request, target: Target | None) -> None:
        """Carry out a request that prepare() has accepted. Raises RequestError."""
        if request.action == Request.VERIFY:
            return
        if request.action == Request.COMMIT:
            if self.saved is None:
                raise RequestError(Code.NOT_FOUND, "no config is saved: VERIFY_AND_SAVE one first")
            target = self.saved
        assert target is not None
        if request.action == Request.VERIFY_AND_SAVE:
            self.saved = target
            return
        if request.action == Request.RECONCILE_AND_COMMIT and self.running is not None:
            _carry_over(self.running, target)
        self._run(target)

    def _run(self, target: Target) -> None:
        self.on_run(target)
        self._install(target.program)
        self.running, self.saved = target, None
        self.loads += 1


def _carry_over(old: Target, new: Target) -> None:
    """Copy the entries, default actions and groups of a target to a fresh one.

    Counters and registers start at zero. Raises RequestError if the tables or actions of the two pipelines differ.
    """
    ours, theirs = pipeline_of(old.names.layout), pipeline_of(new.names.layout)
    if any(ours[item] != theirs.get(item) for item in (*old.names.tables, *old.names.actions)):
        raise invalid("the state cannot be kept under the new config: its tables or actions differ")
    try:
        _carry_profiles(old, new)
        for table in old.names.tables.values():
            _carry_table(old, new, table)
        for group, message in old.groups.items():
            if message.replicas:
                new.control.multicast_set(group, parse_replicas(message.replicas, f"multicast group {group}"))
        for session, clone in old.sessions.items():
            if clone.replicas:
                replicas = parse_replicas(clone.replicas, f"clone session {session}")
                new.externs.clone_set(session, replicas, clone.packet_length_bytes)
        for value_set in old.value_sets.values():
            write_value_set(new, p4runtime_pb2.Update.MODIFY, value_set)
        for digest in old.digests.read(p4runtime_pb2.DigestEntry()):
            new.digests.write(p4runtime_pb2.Update.INSERT, digest.digest_entry)
    except OSError as error:
        raise invalid(f"the state cannot be kept under the new config: {error}") from None
    new.groups.update(old.groups)
    new.sessions.update(old.sessions)
    new.opaque.update(old.opaque)


def _carry_profiles(old: Target, new: Target) -> None:
    insert = p4runtime_pb2.Update.INSERT
    for member in old.members.values():
        profiles.write_member(new, insert, member)
    for group in old.profile_groups.values():
        profiles.write_group(new, insert, group)


def _carry_table(old: Target, new: Target, table: Table) -> None:
    # The new program has its declared entries again; those that the controller had deleted are deleted here too.
    for match, priority, _, _, _, _, is_const, *_ in new.control.table_entries(table.id, table.field_bytes):
        if not is_const:
            new.control.table_delete(table.id, match, priority)
    for entry in old.control.table_entries(table.id, table.field_bytes):
        match, priority, action, params, _, _, is_const, kind, identity, last_hit_us, meter = entry
        key = entry_key(entry)
        one_shot = old.one_shots.get((table.id, key))
        if is_const:
            continue
        if one_shot is not None and one_shot.one_shot is not None:
            profiles.place(new, table, key, one_shot.one_shot, insert=True)
        elif kind != ACTION:
            new.externs.insert_indirect(table.id, match, priority, kind, identity)
        else:
            new.control.table_insert(table.id, match, priority, action, params)
        if meter is not None:
            new.externs.direct_meter_write(table.id, match, priority, MeterConfig(*meter))
        timer = old.timers.by_entry.get((table.id, key))
        if timer is not None:
            new.timers.set((table.id, key), timer.after(last_hit_us * 1e-6))
    if not table.has_const_default:
        for _, _, action, params, _, _, _, kind, identity, *_ in old.control.table_default(table.id):
            if kind != ACTION:
                new.externs.set_default_indirect(table.id, kind, identity)
            elif table.profile is None:
                new.control.table_set_default(table.id, action, params)
