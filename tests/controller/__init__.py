# SPDX-License-Identifier: Apache-2.0
"""Tests of controller/inagg_controller: decisions in virtual time, HTTP with real requests, P4Runtime over real gRPC.

Read `kinds` (jobs of every kind), `serving` (the service with virtual time), `memory_switch` and `fake_server` (the
switch), then `test_jobs` and `test_service`. `launching` starts the controller as a process.
"""
