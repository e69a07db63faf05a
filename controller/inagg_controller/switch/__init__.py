# SPDX-License-Identifier: Apache-2.0
"""The controller's side of the switch.

`entries` defines the table entries, `program` reads sizes and tables from the P4Info, `client` reads and writes them,
`session` is its P4Runtime connection. No other module uses p4runtime-shell. `loss` plans changes of the injected loss.
"""
