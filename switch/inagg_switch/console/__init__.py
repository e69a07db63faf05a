# SPDX-License-Identifier: Apache-2.0
"""The switch's console: commands of BMv2's simple_switch_CLI, carried out in the switch.

`server` listens for clients, `wire` is what they exchange, `interpreter` carries out a line. A file of `commands/` has
the commands of one kind of object. They go to the running program beside any P4Runtime controller, as BMv2's Thrift
server does. This is not Thrift.
"""
