# SPDX-License-Identifier: Apache-2.0
"""The testbed: hosts, switches, controller and workers of one job on one Linux machine, built with Mininet.

One switch, or a tree of them, connects hosts. Each switch and each host has its own network namespace, in which the
switches, the controller and the workers are ordinary processes. Everything that a run creates carries its id and is
recorded in a manifest, so that teardown removes exactly that.

`network` builds a testbed and runs processes on it, `operate` inspects one that is up, `bench` and `demo` measure and
train on one, `cli` is the `inagg` command. Start with `network.testbed.open_testbed`.
"""
