# SPDX-License-Identifier: Apache-2.0
"""Reports: HTML pages that are one file each, and pictures as files.

`bench` and `demo` fill the `parts` of a page with figures, and `page` writes it, with the fabric as `fabric`
draws it. `record` keeps a run's figures, from which its page is written again. `pictures` has the style of PNG files,
`machine` says what the figures were measured on.
"""
