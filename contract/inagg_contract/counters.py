# SPDX-License-Identifier: Apache-2.0
"""The counters of inagg.p4 that have an entry for each port. Others were added to it, with an index of their own."""

PORT_COUNTERS = frozenset(
    {
        *("added", "aggregator_forged", "ahead", "answer_passed", "answer_unexpected", "beacon_refused"),
        *("completed", "congestion_marked", "duplicate_pending", "egress_loss_injected"),
        *("ingress_loss_injected", "malformed", "no_parent", "no_receiver", "no_server", "not_admitted"),
        *("not_ethernet", "own_port", "partial_resent", "partial_sent", "passed", "query_again"),
        *("query_forwarded", "query_held", "query_passed", "result_duplicate", "result_forwarded"),
        *("result_at_home", "result_kept", "result_resent", "result_sent", "result_unexpected"),
        *("slot_added", "slot_collided", "slot_combined", "slot_evicted", "slot_expired", "slot_flushed"),
        *("slot_freed", "slot_taken", "source_refused", "stale", "started", "vlan_tagged", "wrong_epoch"),
    }
)

# Of these, those that tell what became of a packet of a job: each packet that a port receives counts in one.
JOB_PACKETS = (
    *("added", "ahead", "answer_passed", "duplicate_pending", "partial_resent", "query_again", "query_held"),
    *(
        "query_passed",
        "result_duplicate",
        "result_kept",
        "result_resent",
        "result_unexpected",
        "stale",
        "started",
    ),
    *("answer_unexpected", "passed", "query_forwarded", "result_forwarded", "slot_added", "slot_collided"),
    *("slot_combined", "slot_evicted", "slot_expired", "slot_flushed", "slot_taken"),
)
# Results that leave a port.
RESULTS_SENT = "result_sent"

# Of these, what a port counts because its host sends what no host may: other stations' addresses, VLAN tags, beacons.
EDGE_REFUSALS = ("aggregator_forged", "beacon_refused", "source_refused", "vlan_tagged")
