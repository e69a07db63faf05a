# SPDX-License-Identifier: Apache-2.0
"""Links: their rate, and the tc configuration that enforces it.

Both ends of a link are shaped on egress: the host's interface and the switch's port each have a token bucket (tbf). So
a link is full duplex and has the rate in each direction. Two parameters need a choice:

burst   Bytes that a bucket may send at once after a pause. An idle bucket lends that much, so a burst of b bytes
        flatters a transfer of S bytes by up to b/S. A bucket that is too small loses rate whenever the kernel's timer
        is late, which is often the case on two busy cores. Measured with four hosts that send TCP around a ring over
        100 Mbit/s links: a burst of 0.2 ms kept 76 to 96% of the rate, 1 ms 93 to 96%, 2 ms 97 to 98%, 5 ms 98 to 99%.
        BURST_SECONDS is one timer tick of a 250 Hz kernel. At 100 Mbit/s it lends 50 kB, 1.2% of a 4 MB tensor; a ring
        all-reduce, which pauses after each of its 2(N-1) steps, borrows more often.
        A GSO frame counts as the packets it stands for, headers included. It passes unsegmented if it fits the bucket;
        otherwise tbf segments it first. One UDP flow of 1 KiB datagrams, in frames of 1, 16 or 60 of them, reached 96%
        of the rate as payload in each case (headers take the rest): at 100 Mbit/s with bursts of 1, 2 and 4 ms, at
        1 Gbit/s with 4 ms (with 1 ms: 42% for single datagrams, 98% of the possible for 16).
limit   Bytes that may wait in a bucket's queue. A worker has up to one window of contributions in its own queue, the
        switch up to one window of results in the queue of a port: 256 slots of 1086-byte frames are 278 kB. A shorter
        queue would itself cause losses. With 256 KiB the TCP connections of a host all-reduce lost packets too (up to
        880 segments in eight all-reduces), with QUEUE_BYTES almost none. At 100 Mbit/s QUEUE_BYTES holds 42 ms, which
        is short compared with TCP's minimum RTO of 200 ms.
"""

import math
import re
from dataclasses import dataclass

from inagg_contract.constants import ETHERNET_HEADER_BYTES, WORD_BYTES
from inagg_contract.sizes import FRAME_HEADERS_BYTES, data_mtu
from inagg_testbed.errors import ConfigurationError

BURST_SECONDS = 4e-3
SLOTS_SECONDS = 8e-3
QUEUE_BYTES = 512 * 1024
SMALLEST_MTU, JUMBO_MTU = 576, 9000

_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9}
WORDS = (32, 4)  # values of WORDS with which inagg.p4 is compiled
_OFFLOADS = ("tx", "rx", "sg", "tso", "gso", "gro")


def words_within(mtu: int) -> int | None:
    """WORDS, the number of 256-byte words in a DATA packet, for an MTU: 32 or 4, whichever fits; None if neither."""
    return next((words for words in WORDS if data_mtu(words) <= mtu), None)


@dataclass(frozen=True, kw_only=True)
class LinkSpec:
    """A full-duplex link. rate_bps: bits a second of Ethernet frames without preamble, FCS and gap; None: unshaped.

    delay_s: latency in each direction.
    """

    rate_bps: int | None
    mtu: int = 1500
    offloads: bool = True
    delay_s: float = 0.0

    @classmethod
    def parse(cls, text: str, *, mtu: int = 1500, offloads: bool = True, what: str = "link") -> "LinkSpec":
        """Parse `100mbit`, `1gbit`, `2.5gbit`, `500kbit` or `unshaped`. Raises ConfigurationError.

        what: the name in the message.
        """
        if text == "unshaped":
            return cls(rate_bps=None, mtu=mtu, offloads=offloads)
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg])bit", text)
        if match is None or float(match[1]) <= 0:
            raise ConfigurationError(f"{what} {text!r}: want unshaped, or a rate such as 100mbit or 2.5gbit")
        return cls(rate_bps=round(float(match[1]) * _UNITS[match[2]]), mtu=mtu, offloads=offloads)

    def __post_init__(self) -> None:
        if not SMALLEST_MTU <= self.mtu <= JUMBO_MTU:
            raise ConfigurationError(f"MTU {self.mtu} is outside {SMALLEST_MTU} to {JUMBO_MTU}")

    @property
    def burst_bytes(self) -> int:
        """Bytes that a bucket may send at once; see the module docstring."""
        assert self.rate_bps is not None
        return max(2 * (self.mtu + ETHERNET_HEADER_BYTES), round(self.rate_bps / 8 * BURST_SECONDS))

    @property
    def slots(self) -> int:
        """Slots to ask the controller for.

        A power of two of packets that carry 8 ms of the rate (twice the queue that the window aims for), at least 64
        kB, at most what a bucket's queue holds. Each slot costs a small packet for its first exponent. Measured: with 4
        workers, 1M floats and 100 Mbit/s, inagg:32 took 338 ms with 64 slots and 355 ms with 1024. At 1 Gbit/s, 512 and
        1024 slots sometimes overflow the queue, 256 do not. On unshaped links with 10M floats, 1024 slots took 0.75 of
        the time of 256 and 0.95 of the time of 512 or 2048, because a scheduled process finds more work.
        """
        payload = WORD_BYTES * (words_within(self.mtu) or min(WORDS))
        if self.rate_bps is None:
            return 2**20 // payload
        carried = max(64e3, self.rate_bps / 8 * SLOTS_SECONDS)
        fitting = QUEUE_BYTES // (payload + FRAME_HEADERS_BYTES)
        return 1 << min(round(math.log2(carried / payload)), fitting.bit_length() - 1)

    @property
    def frame_bytes(self) -> int:
        """Bytes of a full-sized frame as tc counts it."""
        return self.mtu + ETHERNET_HEADER_BYTES

    @property
    def description(self) -> str:
        """The link in words, for reports."""
        rate = "unshaped" if self.rate_bps is None else f"{self.rate_bps / 1e6:g} Mbit/s each way"
        bucket = "" if self.rate_bps is None else f", token buckets of {self.burst_bytes} bytes at both ends"
        return f"{rate}{bucket}, MTU {self.mtu}, offloads {'on' if self.offloads else 'off'}"

    def commands(self, interface: str) -> list[str]:
        """Shell commands that configure `interface`, which is down, as an end of this link."""
        lines = [f"ip link set dev {interface} mtu {self.mtu}"]
        if not self.offloads:
            lines.append(f"ethtool -K {interface} {' '.join(f'{name} off' for name in _OFFLOADS)} >/dev/null")
        if self.rate_bps is not None:
            lines.append(
                f"tc qdisc add dev {interface} root{' handle 1:' if self.delay_s else ''} tbf rate {self.rate_bps}bit"
                f" burst {self.burst_bytes} limit {QUEUE_BYTES}"
            )
        if self.delay_s:
            place = "root" if self.rate_bps is None else "parent 1:"
            lines.append(f"tc qdisc add dev {interface} {place} netem delay {self.delay_s * 1e6:.0f}us")
        return lines
