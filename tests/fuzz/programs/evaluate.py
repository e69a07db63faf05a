# SPDX-License-Identifier: Apache-2.0
"""Runs a generated program in Python, one packet at a time, as simple_switch does by its documentation and source."""

from contextlib import suppress
from typing import Any

from inagg_switch.vectors import format as pv
from tests.fuzz.programs.expressions import Environment, Ref
from tests.fuzz.programs.externs import CHECKSUM_ERROR
from tests.fuzz.programs.headers import UNIONS, bits_of, zero
from tests.fuzz.programs.objects import DIGEST, LASTING, Lasting
from tests.fuzz.programs.parsers import ERRORS, PACKET, Packet
from tests.fuzz.programs.pipeline import (
    CLONE,
    DROP_PORT,
    EGRESS_CLONE,
    EGRESS_SPEC,
    GROUPS,
    INGRESS_CLONE,
    LENGTH,
    MCAST_GRP,
    NORMAL,
    RECIRCULATE,
    RECIRCULATED,
    REPLICATED,
    RESUBMIT,
    RESUBMITTED,
    SESSIONS,
    TRUNCATED,
    Replicas,
    Round,
    clear_registers,
)
from tests.fuzz.programs.program import METADATA, ROUNDS, GeneratedProgram, leaves_of
from tests.fuzz.programs.statements import ExitControl, ReturnFrom
from tests.fuzz.programs.types import Named

PORT = 2  # on which packets arrive
PARSER_ERROR, INSTANCE_TYPE = "$parser_error", "sm.instance_type"


def expected(program: GeneratedProgram, frames: list[bytes]) -> pv.Vectors:
    """The program's vectors with these packets and the expected results."""
    made = program.vectors()
    evaluator = Evaluator(program)
    lasting = evaluator.lasting
    for frame in frames:
        sent = len(lasting.digests)
        out = evaluator.evaluate(frame)
        digests = [pv.Digest(*digest) for digest in lasting.digests[sent:]]
        made.packets.append(pv.Packet(PORT, frame, out, digests))
    for counter in program.counters:
        for index in range(counter.size):
            made.counters.append(pv.Cell(f"I.{counter.name}", index, lasting.counted(counter.name, index)))
    for table in program.used_tables():
        if table.counted and not table.const:
            for place in range(len(table.entries)):
                counted = lasting.counted(table.name, place)
                made.direct_counters.append(pv.Cell(f"I.{table.name}", place, counted))
    return made


class Evaluator:
    """`lasting`: the state that remains from packet to packet."""

    def __init__(self, program: GeneratedProgram) -> None:
        self.program = program
        self.lasting = Lasting()

    def start(self, round_: Round) -> Environment:
        """The environment before the parser."""
        env: Environment = {
            PACKET: Packet(round_.frame), LASTING: self.lasting, LENGTH: len(round_.frame), DIGEST: None,
            "hdr.s.$next": 0, "hdr.us.$next": 0, MCAST_GRP.path: 0,
        }  # fmt: skip
        clear_registers(env)
        env[UNIONS] = {f"{u}.{m}": [f"{u}.{o}"] for u in self.program.unions() for m, o in ("hs", "sh")}
        for path, header in self.program.headers():
            env[f"{path}.$valid"] = False
            env.update({f"{path}.{name}": zero(t) for name, t in header.fields})
        self._reset_metadata(env, round_.kept)
        return env

    def _reset_metadata(self, env: Environment, kept: dict[str, Any]) -> None:
        """Sets all metadata to 0 except `kept`."""
        env.update({ref.path: zero(ref.type) for ref in (ROUNDS, *self.program.shown())})
        env.update({CHECKSUM_ERROR: 0, PARSER_ERROR: 0})
        env.update(kept)

    def _kept(self, env: Environment, number: int) -> dict[str, Any]:
        """The metadata that a field list preserves."""
        wanted = self.program.field_lists[number]
        refs = [ROUNDS, *(Ref(t, n) for n, t in METADATA.items()), *(r for r, _ in self.program.variables)]
        leaves = [leaf for ref in refs if ref.path in wanted for leaf in leaves_of(ref)]
        return {leaf.path: leaf.value(env) for leaf in leaves}

    def evaluate(self, frame: bytes) -> pv.Output:
        """The frames that leave for a frame, with their ports."""
        out: pv.Output = []
        rounds = [Round(frame, {}, NORMAL)]
        while rounds:
            self._ingress(rounds.pop(0), out, rounds)
        return out

    def parsed(self, round_: Round) -> Environment:
        """The environment after the parser."""
        env = self.start(round_)
        env[PARSER_ERROR] = ERRORS.index(self.program.parser.run(env))
        return env

    def _ingress(self, round_: Round, out: pv.Output, rounds: list[Round]) -> None:
        env = self.parsed(round_)
        env[INSTANCE_TYPE] = round_.instance
        self.program.verify.run(env)
        env[EGRESS_SPEC.path] = 1
        env[ROUNDS.path] += 1
        for ref, value in self.program.variables:
            ref.type.store(env, ref.path, value.value(env))
        with suppress(ExitControl, ReturnFrom):
            self.program.body.run(env)
        if env[CLONE] is not None:
            session, fields = env[CLONE]
            clone = self.parsed(round_)
            self._reset_metadata(clone, self._kept(env, fields))
            self._multicast(clone, SESSIONS, session, INGRESS_CLONE, out, rounds)
        if env[DIGEST] is not None:
            self.lasting.digests.append(env[DIGEST])
        if env[RESUBMIT] is not None:
            rounds.append(Round(round_.frame, self._kept(env, env[RESUBMIT]), RESUBMITTED))
        elif env[MCAST_GRP.path] != 0:
            self._multicast(env, GROUPS, env[MCAST_GRP.path], REPLICATED, out, rounds)
        elif env[EGRESS_SPEC.path] != DROP_PORT:
            env[CLONE] = None
            self._egress(env, env[EGRESS_SPEC.path], 0, NORMAL, out, rounds)

    def _multicast(
        self,
        env: Environment,
        ports: Replicas,
        number: int,
        instance: int,
        out: pv.Output,
        rounds: list[Round],
    ) -> None:
        for port, rid in ports.get(number, []):
            copy = dict(env)
            clear_registers(copy)
            self._egress(copy, port, rid, instance, out, rounds)

    def _egress(
        self, env: Environment, port: int, rid: int, instance: int, out: pv.Output, rounds: list[Round]
    ) -> None:
        env[INSTANCE_TYPE], env[EGRESS_SPEC.path] = instance, 0
        env[ROUNDS.path] += 1
        self.program.egress.run(env)
        results = self._result_bits(env, port, rid)
        with suppress(ExitControl):
            self.program.tail.run(env)
        if env[CLONE] is not None:
            session, fields = env[CLONE]
            clone = dict(env)
            self._reset_metadata(clone, self._kept(env, fields))
            self._multicast(clone, SESSIONS, session, EGRESS_CLONE, out, rounds)
        if env[EGRESS_SPEC.path] == DROP_PORT:
            return
        self.program.update.run(env)
        bits = results + "".join(header.bits(env, path) for path, header in self.program.headers())
        frame = int("1" + bits, 2).to_bytes(len(bits) // 8 + 1, "big")[1:] + env[PACKET].rest()
        if env[RECIRCULATE] is not None:
            rounds.append(Round(frame, self._kept(env, env[RECIRCULATE]), RECIRCULATED))
        else:
            out.append((port, frame[: env[TRUNCATED]]))

    def _result_bits(self, env: Environment, port: int, rid: int) -> str:
        """The fields of `o`."""
        bits = f"{env[PARSER_ERROR] | env[CHECKSUM_ERROR] << 7:08b}"
        bits += f"{env[INSTANCE_TYPE]:04b}{rid & 15:04b}{port & 255:08b}"
        for ref in self.program.shown():
            value = ref.value(env)
            if isinstance(ref.type, Named) and not ref.type.numeric:
                bits += f"{value:08b}"
            else:
                bits += bits_of(ref.type, value)
        return bits + "0" * (-len(bits) % 8)
