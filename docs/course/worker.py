# SPDX-License-Identifier: Apache-2.0
"""A worker of the labs: sends values as chunks, and prints the sums that the switch returns.

Run it in each host, with the worker's number and its values; all workers need the same number of values:

    sudo inagg exec h1 -- python3 worker.py 0  1 2 3
    sudo inagg exec h2 -- python3 worker.py 1  10 20 30

The frame has the header of the last lab. An earlier lab knows the first fields only, and carries the others along.
"""

import argparse
import random
import socket
import struct
import sys
import time

ETHERTYPE_LAB = 0x88B5
CONTRIBUTION, RESULT, BUSY = 0, 1, 2
AGGREGATOR = bytes.fromhex("0200000000fe")
AGG = struct.Struct("!BIIBH")  # kind, value, chunk, worker, job
ETHERNET_BYTES = 14
BUSY_WAIT_S = 0.05


def main() -> None:
    """Entry point."""
    options = parse()
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETHERTYPE_LAB)) as link:
        link.bind((options.interface, ETHERTYPE_LAB))
        sums = exchange(link, options)
    print("sums:", *sums)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Send values to the switch, and print the sums.")
    parser.add_argument("worker", type=int, help="number of this worker in its job, from 0")
    parser.add_argument("values", type=int, nargs="+", help="a value of each chunk, modulo 2^32")
    parser.add_argument("--job", type=int, default=1, help="lab 4 and later (1)")
    parser.add_argument("--first", type=int, default=0, help="number of the first chunk (0)")
    parser.add_argument("--window", type=int, default=1, help="chunks in flight, from lab 2 on (1)")
    parser.add_argument(
        "--again", type=float, metavar="SECONDS", help="send again after this time, from lab 3 on"
    )
    parser.add_argument(
        "--lose", type=float, default=0.0, metavar="P", help="lose packets with this probability"
    )
    parser.add_argument(
        "--patience", type=float, default=60.0, metavar="SECONDS", help="wait for a result (60)"
    )
    parser.add_argument("--interface", default="eth0", help="(eth0)")
    return parser.parse_args()


def exchange(link: socket.socket, options: argparse.Namespace) -> list[int]:
    """Send all chunks, and wait for their results. The result of a chunk lets chunk + window leave."""
    address = link.getsockname()[4]
    values = {options.first + n: value for n, value in enumerate(options.values)}
    results: dict[int, int] = {}
    due: dict[int, float] = {}  # chunk in flight -> when it is sent again
    given_up = time.monotonic() + options.patience
    again = options.again or float("inf")

    def lost() -> bool:
        return random.random() < float(options.lose)

    def send(chunk: int) -> None:
        due[chunk] = time.monotonic() + again
        header = AGG.pack(CONTRIBUTION, values[chunk] % 2**32, chunk % 2**32, options.worker, options.job)
        if not lost():
            link.send(AGGREGATOR + address + ETHERTYPE_LAB.to_bytes(2) + header)

    for chunk in list(values)[: options.window]:
        send(chunk)
    while due:
        now = time.monotonic()
        if now > given_up:
            sys.exit(f"worker {options.worker}: no result of chunk {min(due)} within {options.patience:g} s")
        for chunk in [chunk for chunk, when in due.items() if when <= now]:
            send(chunk)
        link.settimeout(max(min(*due.values(), given_up) - now, 0.001))
        try:
            frame = link.recv(2048)
        except TimeoutError:
            continue
        kind, value, number, _, job = AGG.unpack_from(frame, ETHERNET_BYTES)
        chunk = next((each for each in due if each % 2**32 == number), None)
        if chunk is None or job != options.job or lost():
            continue
        if kind == BUSY:
            print(f"chunk {chunk}: busy", flush=True)
            due[chunk] = now + BUSY_WAIT_S
        elif kind == RESULT:
            print(f"chunk {chunk}: {value}", flush=True)
            results[chunk] = value
            del due[chunk]
            given_up = time.monotonic() + options.patience
            if chunk + options.window in values:
                send(chunk + options.window)
    return [results[chunk] for chunk in values]


if __name__ == "__main__":
    main()
