# SPDX-License-Identifier: Apache-2.0
"""The entry points of the commands `inagg`, `inagg-switch` and `inagg-controller`.

They report a missing extra of the package before they import what needs it. Read `cli`.
"""
