# SPDX-License-Identifier: Apache-2.0
"""Tests of the controller: decisions in virtual time, HTTP with real requests, P4Runtime with a real server."""
