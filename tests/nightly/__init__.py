# SPDX-License-Identifier: Apache-2.0
"""`make nightly`: what `make check` and `make test` cannot hold in their time, part by part."""
