# SPDX-License-Identifier: Apache-2.0
"""Commands with the names and options of p4c and BMv2, for Makefiles of courses; docs/courses.md is their page.

`inagg-switch shims FOLDER` writes a script for each; all scripts run `__main__`. `p4c` compiles, `simple_switch` runs
the switch, `switch_cli` is the client of its console (inagg_switch.console).
"""
