# SPDX-License-Identifier: Apache-2.0
"""The switch as the controller knows it.

`entries` names what is written, `program` reads from the P4Info what can be written, `client` writes it through
p4runtime-shell, which nothing else imports. `loss` is injected loss, `sizes` the sizes of packets.
"""
