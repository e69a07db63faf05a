# SPDX-License-Identifier: Apache-2.0
"""Tests of mininet/inagg_testbed/report.

`sample` is a page with every part. `test_parts`, `test_page` and `test_record` read what is written. `test_browser`
uses the sample in Chromium, and is skipped without `chromium` and `chromedriver` on PATH. `test_command` runs
`inagg report`.
"""
