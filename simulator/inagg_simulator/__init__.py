# SPDX-License-Identifier: Apache-2.0
"""Workers, switches, servers and networks in virtual time: no sockets, no clock, no root.

The parts are real. Workers are the engines of the C++ core, servers its `ServedJob`; a switch is the compiled P4
program (`p4_switch`) or the rules of docs/protocol.md in plain Python (`reference_switch`). Links lose, double, delay
and reorder packets, and time jumps from event to event. Start reading at `virtual_network`.

| module | what it has |
|---|---|
| `virtual_network` | one job: its workers, their links, and time |
| `fabric` | the switches between the workers: one, or a tree |
| `shared_fabric` | jobs on shared slots: hosts, switches with the controller's entries, and servers |
| `p4_switch`, `reference_switch`, `servers` | what sums |
| `slot_rules` | what slots do with packets, as tables |
| `virtual_device` | a worker whose floats are on a device |
| `reference` | packets and numbers in plain Python, without code of the core |
| `recovery` | a command: what losses cost with many workers |
"""
