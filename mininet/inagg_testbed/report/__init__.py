# SPDX-License-Identifier: Apache-2.0
"""What reports are made of: pictures in one style (`pictures`), HTML pages (`page`), and the machine (`machine`).

`bench` and `demo` say what is in them.
"""
