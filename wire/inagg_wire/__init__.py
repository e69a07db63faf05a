# SPDX-License-Identifier: Apache-2.0
"""inagg's packets for those who look at them: scapy layers, a Wireshark dissector, and `inagg decode`.

`layers` has the scapy layers, `DISSECTOR` is the path of the dissector. `cli` is the command: `captures` reads files,
`frames` and `packets` find datagrams and packets, `network` learns who is where, `chunks` says what became of a chunk,
`decoder` brings them together, `story` and `summary` put the outcome into words.
"""

from pathlib import Path

# A dissector in Lua for Wireshark and tshark: `wireshark -X lua_script:FILE`.
DISSECTOR = Path(__file__).with_name("inagg.lua")
