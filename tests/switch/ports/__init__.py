# SPDX-License-Identifier: Apache-2.0
"""Tests of the packet ports: queues, segmentation offloads, real switches between network namespaces."""
