"""python -m inagg_testbed: the `inagg` command."""

from inagg_testbed.cli import main

main()
