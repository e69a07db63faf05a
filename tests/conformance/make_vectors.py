# SPDX-License-Identifier: Apache-2.0
"""Writes tests/conformance/vectors/*.json from the reference: python -m tests.conformance.make_vectors

Everything in them follows from docs/protocol.md; hexadecimal is a datagram (UDP payload), a block's words, or the bits
of a float32.
"""

import inspect
import json
import math
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from inagg_simulator import reference
from inagg_simulator.reference import AGAIN, DATA, EXPONENT, QUERY, RESULT, Lanes
from inagg_simulator.reference_switch import Aggregator, AllReduce, Dialogue, Job, Up

VECTORS = Path(__file__).with_name("vectors")
JOB = 3
EPOCH = 0x01020304


def float_bits(x: float) -> str:
    return "7fc00000" if math.isnan(x) else struct.pack(">f", x).hex()


def floats(values: Sequence[float]) -> list[str]:
    return [float_bits(x) for x in values]


def blocks() -> dict[str, Any]:
    """Single blocks: exponent, lanes, checksum, lanes of all class chunks; and what a sum of the lanes gives back."""
    tiny = 2.0**-149
    cases: list[tuple[str, int, int, list[float]]] = [
        ("zeros", 32, 2, [0.0, -0.0]),
        ("ones of both signs, 32 bits", 32, 2, [1.0, -1.0, 0.5]),
        ("ones of both signs, 16 bits", 16, 2, [1.0, -1.0, 0.5]),
        ("one worker: no guard bits", 32, 1, [1.0, -1.0, 2.0**-30]),
        ("64 workers: six guard bits", 16, 64, [1.0, -1.0, 2.0**-8]),
        ("three workers need as many guard bits as four", 32, 3, [3.0, -2.0]),
        ("8 bits, one worker", 8, 1, [1.0, -1.0, 0.5, 2.0**-7, -(2.0**-8)]),
        ("8 bits, eight workers: the last whose classes fit one chunk", 8, 8, [1.0, -0.25, math.nan]),
        ("8 bits, nine workers: two class chunks", 8, 9, [1.0, -0.75, math.inf, -math.inf, math.nan]),
        ("8 bits, 64 workers: one fraction bit", 8, 64, [1.5, -1.0, 0.5, 0.25]),
        ("8 bits, 64 workers: just below the tie keeps the exponent", 8, 64, [1.5 - 2.0**-23, -1.0, 0.75]),
        ("the greatest floats, 8 bits", 8, 2, [2.0**128 - 2.0**104, -(2.0**128 - 2.0**104)]),
        ("ties go to even", 16, 1, [0.5 + k * 2.0**-16 for k in range(-4, 5)]),
        ("rounding up to 2^F raises the exponent", 16, 4, [1 - 2.0**-14, 0.25]),
        ("just below does not", 16, 4, [1 - 2.0**-13, 0.25]),
        ("subnormals", 32, 2, [tiny, -3 * tiny, 2.0**-127]),
        ("the greatest floats", 32, 2, [2.0**128 - 2.0**104, -(2.0**128 - 2.0**104)]),
        ("the greatest floats, 16 bits", 16, 2, [2.0**128 - 2.0**104, -(2.0**128 - 2.0**104)]),
        ("far apart: the small ones vanish", 16, 2, [1.0, 2.0**-16, -(2.0**-15)]),
        ("half are 2^21 times smaller: outliers", 16, 2, [1.5, 2.0**-21, -1.0, 2.0**-22, 0.0, tiny]),
        ("two of five: none", 16, 2, [1.5, 2.0**-21, -1.0, 2.0**-22, -1.0]),
        ("2^20 times smaller: none", 16, 2, [1.0, 1.9 * 2.0**-20]),
        (
            "outliers of all kinds",
            32,
            3,
            [-1e24, 1e-3, -2e-3, 4e-3, -5e-3, 3e38, 5e10, 0.0, math.inf, math.nan],
        ),
        ("subnormals beside an outlier", 32, 2, [tiny, -5 * tiny, 2.0**-80, 2.0**-111]),
        ("outliers, 8 bits, nine workers", 8, 9, [1e-3, -1e-3, 1e6, -3e5]),
        ("specials", 32, 3, [1.0, math.inf, -math.inf, math.nan, -2.0]),
        ("nothing but specials", 16, 3, [math.nan, math.inf]),
    ]
    out = []
    for name, lane_bits, workers, values in cases:
        lanes = Lanes(lane_bits, workers)
        block = [struct.unpack("f", struct.pack("f", x))[0] for x in values]
        code = reference.block_exponent(block, lanes)
        quantised = reference.quantise(reference.together(block), code, lanes, 1)
        apart = reference.outliers(block)
        outlier_code = reference.exponent_code(apart, lanes)
        outlier_lanes = reference.quantise(apart, outlier_code, lanes, 1)
        classes = reference.class_lanes(block, lanes, 1)
        # As if all workers had contributed the same block.
        sums = [workers * q for q in quantised]
        class_sums = [workers * lane for lane in classes]
        outlier_sums = [workers * lane for lane in outlier_lanes]
        results = {}
        for average in (False, True):
            result = reference.dequantise(sums[: len(block)], code, lanes, average)
            result = reference.add_outliers(result, sums, code, outlier_sums, outlier_code, lanes, average)
            results[average] = reference.apply_classes(result, class_sums, lanes)
        out.append(
            {
                "name": name,
                "lane_bits": lane_bits,
                "workers": workers,
                "block": floats(block),
                "exponent": code,
                "special": reference.is_special(block),
                "wide": reference.is_wide(block),
                "words": lanes.pack(quantised).hex(),
                "checksum": reference.checksum(quantised),
                "class_words": lanes.class_format.pack(classes).hex(),
                "class_checksum": reference.checksum(classes),
                "outliers": floats(apart),
                "outlier_exponent": outlier_code,
                "outlier_words": lanes.pack(outlier_lanes).hex(),
                "summed_words": lanes.pack(sums).hex(),
                "summed_class_words": lanes.class_format.pack(class_sums).hex(),
                "summed_outlier_words": lanes.pack(outlier_sums).hex(),
                "sum": floats(results[False]),
                "average": floats(results[True]),
            }
        )
    return {"words": 1, "blocks": out}


def exchange(
    *,
    workers: int,
    slots: int,
    words: int,
    first_chunk: int,
    collectives: list[AllReduce],
    queued: bool = False,
) -> dict[str, Any]:
    """Whole collectives of a job, every packet in step: chunk after chunk, rank after rank. `queued`: all are submitted
    before the first packet, so that they announce one another's blocks."""
    job = Job(workers, slots, EPOCH, first_chunk=first_chunk)
    dialogue = Dialogue(Aggregator(words, {JOB: job}), JOB, first_chunk)
    return {
        "job": JOB,
        "epoch": EPOCH,
        "workers": workers,
        "slots": slots,
        "words": words,
        "first_chunk": first_chunk,
        "queued": queued,
        "collectives": [
            {
                "lane_bits": collective.lane_bits,
                "average": collective.average,
                "inputs": [floats(own) for own in collective.inputs],
                "steps": [
                    {
                        "rank": step.rank,
                        "datagram": step.datagram.hex(),
                        "results": [
                            {"rank": rank, "datagram": result.hex()} for rank, result in step.results
                        ],
                    }
                    for step in steps
                ],
                "output": floats(
                    reference.all_reduce(
                        collective.inputs,
                        lane_bits=collective.lane_bits,
                        words=words,
                        average=collective.average,
                    )
                ),
            }
            for collective, steps in zip(
                collectives, dialogue.all_reduces(collectives, queued=queued), strict=True
            )
        ],
    }


def exchange_pair() -> dict[str, Any]:
    """Two workers, 32-bit lanes, two blocks; then three elements more."""
    ramp = [k / 8 for k in range(-150, 150)]
    return exchange(
        workers=2,
        slots=2,
        words=4,
        first_chunk=0,
        collectives=[
            AllReduce([ramp, [1.0] * 300], 32),
            AllReduce([[1.0, 2.0, 3.0], [0.25, -2.0, 1e-3]], 32, average=True),
        ],
    )


def exchange_specials() -> dict[str, Any]:
    """Three workers, 16-bit lanes, one slot, specials, across the wrap of chunk numbers."""
    return exchange(
        workers=3,
        slots=1,
        words=1,
        first_chunk=2**32 - 2,
        collectives=[
            AllReduce([[1.0, math.nan, 0.5], [2.0, 1.0, math.inf], [3.0, 1.0, math.inf]], 16),
            AllReduce([[1.0], [1.0], [2.0]], 16, average=True),
        ],
    )


def exchange_wide() -> dict[str, Any]:
    """Three workers, 8-bit lanes, two slots: a block with outliers on two ranks, one with outliers and a NaN, and one
    with neither; then an average of a block with outliers."""
    usual = [[(rank - 4) * (1 + k % 7) / 256 for k in range(600)] for rank in range(3)]
    usual[1][5] = 1e24
    usual[2][5:8] = [-1e24, 1e23, 2e15]
    usual[0][300] = math.nan
    usual[2][511] = -3e38
    short = [[1e-30, 1e-20 * rank] for rank in range(3)]
    return exchange(
        workers=3,
        slots=2,
        words=1,
        first_chunk=2,
        collectives=[AllReduce(float32(usual), 8), AllReduce(float32(short), 8, average=True)],
    )


def float32(rows: list[list[float]]) -> list[list[float]]:
    rounded: list[list[float]] = np.array(rows, np.float32).tolist()
    return rounded


def exchange_queued() -> dict[str, Any]:
    """Two workers, two slots: collectives of 3, 1 and 2 blocks that announce one another's, one with a NaN; then one
    with 8-bit lanes."""
    return exchange(
        workers=2,
        slots=2,
        words=1,
        first_chunk=6,
        queued=True,
        collectives=[
            AllReduce([[0.5] * 150, [k / 16 for k in range(150)]], 32),
            AllReduce([[1.0, -3.0], [1e-6, 0.0]], 16, average=True),
            AllReduce([[7.0] * 100, [1.0] * 99 + [math.nan]], 32),
            AllReduce([[0.75, -1.0, 0.0], [math.inf, 0.5, 0.0]], 8),
        ],
    )


class Table:
    """A walk through the decision tables of 5.1 and 5.2, on one job of two members with two slots.

    above: the job's member numbers at the switches above.
    """

    def __init__(self, first_chunk: int, above: Sequence[int] = ()) -> None:
        job = Job(2, 2, EPOCH, first_chunk=first_chunk, above=above)
        self._aggregator = Aggregator(1, {JOB: job})
        self._steps: list[dict[str, Any]] = []
        self._document: dict[str, Any] = {"job": JOB, "epoch": EPOCH, "workers": 2, "slots": 2, "words": 1}
        self._document["first_chunk"] = first_chunk
        if above:
            self._document["above"] = list(above)

    def send(self, meaning: str, counter: str, sender: int | None, payload: bytes, **fields: int) -> None:
        """A packet of a member; None: of a switch above, as answer to member 0."""
        announced = {name: fields.pop(name, 0) for name in ("flags", "exponent")}
        kind = (DATA if payload else EXPONENT) | (RESULT if sender is None else 0)
        base = reference.contribution(kind=kind, rank=sender or 0, job=JOB, epoch=EPOCH, chunk=0, **announced)
        datagram = base._replace(**fields).encode() + payload
        before = self._aggregator.counters.copy()
        sent = (
            self._aggregator.result(datagram)
            if sender is None
            else self._aggregator.contribute(sender, datagram)
        )
        counters = list(self._aggregator.counters - before)
        assert counters[0] == counter, meaning
        step: dict[str, Any] = {
            "meaning": meaning,
            "counters": counters,
            "rank": sender,
            "datagram": datagram.hex(),
            "results": [
                {"rank": to, "datagram": result.hex()} for to, result in sent if not isinstance(to, Up)
            ],
        }
        partials = [(to.parent, partial.hex()) for to, partial in sent if isinstance(to, Up)]
        if partials:
            step["partials"] = [{"parent": parent, "datagram": partial} for parent, partial in partials]
        self._steps.append(step)

    def ask(
        self,
        meaning: str,
        counter: str,
        sender: int | None,
        kind: int,
        chunk: int,
        number: int,
        flags: int = 0,
    ) -> None:
        """A query of a member; None: an answer of a switch above."""
        kind |= QUERY | (RESULT if sender is None else 0)
        self.send(meaning, counter, sender, b"", kind=kind, chunk=chunk, checksum=number, flags=flags)

    def document(self) -> dict[str, Any]:
        return {**self._document, "steps": self._steps}


def word(value: int) -> bytes:
    return (value % 2**2048).to_bytes(256, "big")


def slots() -> dict[str, Any]:
    """The decision tables of 5.1 and 5.2, row by row, on one job of two workers with two slots."""
    table = Table(0)
    send, ask = table.send, table.ask
    ask("nothing has come yet", "query_again", 0, EXPONENT, 0, 0x100)
    send("a job begins with its first S chunks", "ahead", 0, b"", chunk=2)
    send("with none that is newer", "ahead", 0, b"", chunk=5)
    send("an EXPONENT starts slot 0", "started", 0, b"", chunk=0, exponent=272, flags=1, checksum=8)
    send("the same again: dropped", "duplicate_pending", 0, b"", chunk=0, exponent=272, checksum=8)
    ask("its sender is told that it is there", "query_held", 0, EXPONENT, 0, 0x12345678)
    ask("the other worker's is missing", "query_again", 1, EXPONENT, 0, 2**32 - 2)
    send("the other worker: maximum, OR, sum", "added", 1, b"", chunk=0, exponent=262, checksum=8)
    ask("complete: the asker is to send again", "query_again", 1, EXPONENT, 0, 0x345)
    send("again: the result, to the sender alone", "result_resent", 1, b"", chunk=0, checksum=8)
    send("DATA in the other slot", "started", 1, word(5), chunk=1, checksum=2**32 - 1)
    send("words and checksums add", "added", 0, word(7), chunk=1, checksum=3)
    send("the second version of slot 0", "started", 0, word(-1), chunk=2, checksum=1)
    send("a word wraps and carries nowhere", "added", 1, word(1), chunk=2, checksum=1)
    send("the first version still answers", "result_resent", 0, b"", chunk=0)
    send("chunk 3 follows chunk 1", "started", 0, word(1), chunk=3, checksum=1)
    send("chunk 5 is ahead while chunk 3 is not complete", "ahead", 0, word(1), chunk=5)
    send("and chunk 3 is as it was", "added", 1, word(2), chunk=3, checksum=2)
    send("chunk 6 is ahead: chunk 4 is not there", "ahead", 0, word(1), chunk=6)
    send("chunk 8 too: chunk 6 is not there", "ahead", 0, word(1), chunk=8)
    send("a chunk just short of 2^31 newer too", "ahead", 0, word(1), chunk=2**31 - 4)
    ask("chunk 0 still answers", "query_again", 0, EXPONENT, 0, 3)
    send("with its result", "result_resent", 0, b"", chunk=0)
    ask("chunk 4 is missing where chunk 0 is", "query_again", 0, DATA, 4, 4)
    send("chunk 4 overwrites chunk 0", "started", 0, word(1), chunk=4, checksum=1)
    send("a late chunk 0 is stale", "stale", 1, b"", chunk=0)
    ask("so is a late query", "stale", 1, EXPONENT, 0, 5)
    send("a much older chunk too", "stale", 1, b"", chunk=2**32 - 4)
    send("another epoch is refused", "wrong_epoch", 1, word(1), chunk=4, epoch=EPOCH + 1)
    send("a query in another epoch too", "wrong_epoch", 1, b"", chunk=4, kind=DATA | QUERY, epoch=EPOCH + 1)
    send("another job is refused", "not_admitted", 1, word(1), chunk=4, job=JOB + 1)
    send("another rank than this port's is refused", "not_admitted", 1, word(1), chunk=4, rank=0)
    send("version 2", "malformed", 1, word(1), chunk=4, version=2)
    send("an unknown kind", "malformed", 1, word(1), chunk=4, kind=3)
    send("a query for no kind", "malformed", 1, b"", chunk=4, kind=QUERY)
    send("a query with words", "malformed", 1, word(1), chunk=4, kind=DATA | QUERY)
    send("a result", "not_admitted", 1, word(1), chunk=4, kind=0xA)
    send("an answer", "not_admitted", 1, b"", chunk=4, kind=DATA | QUERY | RESULT)
    send("flags that were damaged", "malformed", 1, word(1), chunk=4, flags_check=2)
    send("an exponent that was damaged", "malformed", 1, word(1), chunk=4, exponent_check=0)
    send("DATA without words", "malformed", 1, b"", chunk=4, kind=DATA)
    send("an EXPONENT with words", "malformed", 1, word(1), chunk=4, kind=EXPONENT)
    send("one byte too many", "malformed", 1, word(1) + b"\0", chunk=4)
    send("and nothing of that was added", "added", 1, word(2), chunk=4, checksum=2)
    return table.document()


def slots_wrap() -> dict[str, Any]:
    """The decision table of 5.2 where a job begins just before chunk numbers wrap, at 2^32 - 2."""
    table = Table(2**32 - 2)
    send = table.send
    send("the job begins with its first S chunks", "ahead", 0, word(9), chunk=0)
    send("with none that is older", "ahead", 0, word(9), chunk=2**32 - 3)
    send("not with 1 either, which is below S", "ahead", 0, word(9), chunk=1)
    send("2^32 - 2 is the first", "started", 0, word(1), chunk=2**32 - 2, checksum=1)
    send("0 is ahead while 2^32 - 2 is not complete", "ahead", 0, word(9), chunk=0)
    send("2^32 - 2 is complete", "added", 1, word(2), chunk=2**32 - 2, checksum=2)
    send("0 starts", "started", 0, word(9), chunk=0, checksum=9)
    send("2^32 - 4 is stale", "stale", 1, b"", chunk=2**32 - 4)
    send("as is what is just short of 2^31 older", "stale", 1, b"", chunk=2**31 + 4)
    send("0 is complete when both are there", "added", 1, word(9), chunk=0, checksum=9)
    send("2^32 - 1 is ahead of nothing", "started", 1, word(1), chunk=2**32 - 1, checksum=1)
    send("1 is ahead until it is complete", "ahead", 0, word(1), chunk=1)
    send("2 overwrites 2^32 - 2", "started", 1, word(3), chunk=2, checksum=3)
    return table.document()


def slots_leaf() -> dict[str, Any]:
    """The decision tables of 5.1, 5.2 and 5.5 at a switch that is member 5 of one above and member 6 of another, which
    take turns."""
    table = Table(0, above=(5, 6))
    send, ask = table.send, table.ask
    send("an EXPONENT starts slot 0", "started", 0, b"", chunk=0, exponent=272, flags=1, checksum=8)
    send("a result is early while a member is missing", "result_unexpected", None, b"", chunk=0, checksum=32)
    send("the other member: the partial sum goes up", "added", 1, b"", chunk=0, exponent=262, checksum=8)
    ask("member 0 is told when the one above has been asked", "query_passed", 0, EXPONENT, 0, 0x107)
    ask("the others at once", "query_held", 1, EXPONENT, 0, 0x108)
    ask("the answer goes to member 0", "answer_passed", None, EXPONENT, 0, 0x107)
    ask("to send again too", "answer_passed", None, EXPONENT, 0, 0x107, flags=AGAIN)
    send("sent again, it goes up again", "partial_resent", 0, b"", chunk=0, exponent=272, flags=1, checksum=8)
    send("but not for each member", "duplicate_pending", 1, b"", chunk=0, exponent=262, checksum=8)
    send("chunk 2 may not start before the result of 0", "ahead", 0, word(1), chunk=2, checksum=1)
    send("chunk 1 is for the other switch above", "started", 1, word(5), chunk=1, checksum=5)
    send("its partial sum", "added", 0, word(7), chunk=1, checksum=7)
    send("the result of 0 goes down", "result_kept", None, b"", chunk=0, exponent=280, flags=3, checksum=32)
    send("once", "result_duplicate", None, b"", chunk=0, exponent=280, flags=3, checksum=32)
    ask("who asks is to send again", "query_again", 1, EXPONENT, 0, 0x109)
    send("and gets it", "result_resent", 1, b"", chunk=0, exponent=262, checksum=8)
    ask("an answer is late then", "result_duplicate", None, EXPONENT, 0, 0x107, flags=AGAIN)
    ask("a query goes to the other switch above", "query_passed", 0, DATA, 1, 0x10A)
    send("the result of 1", "result_kept", None, word(112), chunk=1, checksum=112)
    send("who sends again, gets its words", "result_resent", 0, word(7), chunk=1, checksum=7)
    send("now chunk 2 may start", "started", 0, word(1), chunk=2, checksum=1)
    ask("an answer while a member is missing", "result_unexpected", None, DATA, 2, 0x10C)
    send("a result of a chunk to come", "result_unexpected", None, word(9), chunk=4, checksum=9)
    send("a result in another epoch", "wrong_epoch", None, word(9), chunk=2, epoch=EPOCH + 1)
    send("a result of another job", "not_admitted", None, word(9), chunk=2, job=JOB + 1)
    send("a result that was damaged", "malformed", None, word(9), chunk=2, exponent_check=0)
    send("a contribution of a switch above", "not_admitted", None, word(9), chunk=2, kind=DATA)
    send("a result of a member", "not_admitted", 1, word(9), chunk=2, kind=DATA | RESULT)
    send("the partial sum of 2", "added", 1, word(2), chunk=2, checksum=2)
    send("and its result", "result_kept", None, word(40), chunk=2, checksum=40)
    send("chunk 4 overwrites 0", "started", 0, word(1), chunk=4, checksum=1)
    ask("a late answer is stale", "stale", None, EXPONENT, 0, 0x107)
    send("a late result of 0 is stale", "stale", None, b"", chunk=0, exponent=280, flags=3, checksum=32)
    return table.document()


FILES: dict[str, Callable[[], dict[str, Any]]] = {
    "blocks.json": blocks,
    "exchange_pair.json": exchange_pair,
    "exchange_queued.json": exchange_queued,
    "exchange_specials.json": exchange_specials,
    "exchange_wide.json": exchange_wide,
    "slots.json": slots,
    "slots_leaf.json": slots_leaf,
    "slots_wrap.json": slots_wrap,
}


def text(make: Callable[[], dict[str, Any]]) -> str:
    meaning = inspect.cleandoc(make.__doc__ or "")  # since 3.13 Python itself removes the indentation
    return json.dumps({"meaning": meaning, **make()}, indent=1) + "\n"


if __name__ == "__main__":
    for name, make in FILES.items():
        (VECTORS / name).write_text(text(make))
