"""The testbed: hosts, switch, controller and workers of one job on one Linux machine, built with Mininet.

Public names are in the modules: `testbed.open_testbed` builds a network and takes it down again, `links.LinkSpec`
describes a link, `errors` holds what is raised. The `inagg` command (`cli`) is made of them.

One switch stands in the middle of a star of hosts, each in its own network namespace; the switch, the
controller and the workers are ordinary processes inside those namespaces. Everything created carries the
id of its run and is recorded in a manifest (`lifecycle`), so that exactly that is removed again.
"""
