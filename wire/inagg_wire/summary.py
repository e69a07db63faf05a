# SPDX-License-Identifier: Apache-2.0
"""The summary of captures: jobs, ranks, packets by kind, what was sent again and lost, and the slowest chunks."""

from collections.abc import Iterator
from typing import Any

from inagg_contract.addresses import format_ip
from inagg_wire.decoder import Decoder, Job, JobFigures
from inagg_wire.layers import KINDS

_WHAT = ("contribution", "result", "query", "repeat")


def summary(decoder: Decoder, notes: list[str]) -> dict[str, Any]:
    """The document of what the captures had. `notes`: what is wrong with the files."""
    return {
        "places": {str(place): count for place, count in sorted(decoder.frames.items())},
        "other_frames": decoder.other,
        "cut_frames": decoder.cut,
        "malformed": dict(decoder.malformed),
        "left_out": decoder.left_out,
        "notes": notes,
        "jobs": [_job(decoder, job, figures) for job, figures in decoder.jobs.items() if figures.chunks],
    }


def _job(decoder: Decoder, job: Job, figures: JobFigures) -> dict[str, Any]:
    ranks = decoder.network.members(*job)
    return {
        "job": job.number,
        "epoch": job.epoch,
        "began_s": figures.first_ns / 1e9,
        "seconds": round((figures.last_ns - figures.first_ns) / 1e9, 6),
        "chunks": figures.chunks,
        "first_chunk": figures.first_chunk,
        "newest_chunk": figures.newest_chunk,
        "packets": {KINDS[kind]: count for kind, count in sorted(figures.packets.items())},
        "answers": {"again": figures.told_again, "held": figures.held},
        "damaged": figures.damaged,
        "late": figures.late,
        "congested": figures.congested,
        "aggregators": sorted(decoder.network.name(*job, each) for each in decoder.network.aggregators(*job)),
        "members": [
            {
                "name": decoder.network.name(*job, address),
                "rank": ranks[address],
                "address": f"{format_ip(address.ip)}:{address.port}",
                "contributions": each.contributions,
                "again": each.again,
                "duplicates": each.duplicates,
                "queries": each.queries,
                "lost": {what: each.lost[what] for what in _WHAT},
                "late": each.lost["late"],
                "last": each.last,
            }
            for address, each in sorted(figures.members.items(), key=lambda item: (ranks[item[0]], item[0]))
        ],
        "slowest": [
            {"chunk": slow.chunk, "ms": round(slow.took_ns / 1e6, 6)}
            for slow in sorted(figures.slowest, reverse=True)
        ],
    }


def lines(document: dict[str, Any]) -> Iterator[str]:
    """The document in words."""
    places = document["places"]
    yield f"{sum(places.values()):,} frames: " + ", ".join(f"{at} {count:,}" for at, count in places.items())
    for key, text in (
        ("other_frames", "frames of other traffic"),
        ("cut_frames", "frames of which the capture has too little (snaplen)"),
        ("left_out", "packets of jobs beyond those that can be told apart"),
    ):
        if document[key]:
            yield f"{document[key]:,} {text}"
    for reason, count in document["malformed"].items():
        yield f"{count:,} malformed: {reason}"
    if not document["jobs"]:
        yield "no packet of the protocol"
    for job in document["jobs"]:
        yield ""
        yield from _of_job(job)


def _of_job(job: dict[str, Any]) -> Iterator[str]:
    yield (
        f"job {job['job']}, epoch {job['epoch']:#010x}: {job['chunks']:,} chunks from {job['first_chunk']} to"
        f" {job['newest_chunk']} in {job['seconds']:.3f} s, summed by {', '.join(job['aggregators'])}"
    )
    yield "packets: " + ", ".join(f"{kind} {count:,}" for kind, count in job["packets"].items())
    answers = job["answers"]
    if answers["again"] or answers["held"]:
        yield f"answers: {answers['again']:,} again, {answers['held']:,} held"
    for key, text in (
        ("damaged", "packets whose check fields do not match"),
        ("late", "packets of chunks that were over long before"),
        ("congested", "packets marked congested (CE)"),
    ):
        if job[key]:
            yield f"{job[key]:,} {text}"
    header = (
        "",
        "sent",
        "again",
        "twice",
        "asked",
        "lost: sent",
        "result",
        "query",
        "repeat",
        "late",
        "last",
    )
    rows = [
        (
            member["name"],
            member["contributions"],
            member["again"],
            member["duplicates"],
            member["queries"],
            *member["lost"].values(),
            member["late"],
            member["last"],
        )
        for member in job["members"]
    ]
    width = max([len(row[0]) for row in rows], default=0)
    yield f"{header[0]:<{width}}" + "".join(f"  {name:>10}" for name in header[1:])
    for row in rows:
        yield f"{row[0]:<{width}}" + "".join(f"  {value:>10,}" for value in row[1:])
    if job["slowest"]:
        yield "slowest: " + ", ".join(f"{each['chunk']} ({each['ms']:.3f} ms)" for each in job["slowest"])
