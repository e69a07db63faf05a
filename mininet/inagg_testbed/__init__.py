# SPDX-License-Identifier: Apache-2.0
"""The testbed: hosts, switch, controller and workers of one job on one Linux machine, built with Mininet.

One switch stands in the middle of a star of hosts, each in its own network namespace; the switch, the
controller and the workers are ordinary processes inside those namespaces. Everything created carries the
id of its run and is recorded in a manifest, so that exactly that is removed again.

`network` builds a testbed and runs processes on it, `operate` looks into one that is up, `bench` and `demo` measure
and train on one, `cli` is the `inagg` command. Start with `network.testbed.open_testbed`.
"""
