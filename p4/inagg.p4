// SPDX-License-Identifier: Apache-2.0
//
// inagg: sums the gradients of a data-parallel training job inside the switch.
//
// docs/protocol.md is normative; section numbers in comments refer to it. This file has the includes, the order in
// which the controls run, and the package. Each control has its file in include/.
//
// Loops are in actions only: p4c's BMv2 back end runs a `for` in an apply block once, without a warning.

#include <core.p4>
#include <v1model.p4>

#include "include/constants.p4"
#include "include/headers.p4"
#include "include/parser.p4"
#include "include/loss.p4"
#include "include/source_guard.p4"
#include "include/arp.p4"
#include "include/ping.p4"
#include "include/l2.p4"
#include "include/beacon.p4"
#include "include/admission.p4"
#include "include/congestion.p4"
#include "include/sums.p4"
#include "include/slots.p4"
#include "include/shared.p4"
#include "include/delivery.p4"
#include "include/deparser.p4"

control InaggIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    // One entry for each slot version, leased or shared. Entries are never cleared: the next chunk, or a chunk of another
    // epoch, overwrites them. So the rest of a crashed job does no harm.
    register<epoch_t>(SLOT_VERSIONS) slot_epoch;
    register<chunk_t>(SLOT_VERSIONS) slot_chunk;
    register<member_bitmap_t>(SLOT_VERSIONS) slot_members;
    register<bit<64>>(SLOT_VERSIONS) slot_header;       // both announced fields and the checksum
    register<word_t>(SLOT_VERSIONS * WORDS) pool;

    IngressLoss() ingress_loss;
    Admission() admission;
    HearCongestion() hear_congestion;
    Slots(slot_epoch, slot_chunk, slot_members, slot_header, pool) slots;
    SharedSlots(slot_epoch, slot_chunk, slot_members, slot_header, pool) shared_slots;
    SourceGuard() source_guard;
    ArpResponder() arp_responder;
    PingResponder() ping_responder;
    L2() l2;
    Beacons() beacons;

    apply {
        ingress_loss.apply(hdr, meta, standard_metadata);
        if (!meta.dropped) {
            if (meta.aggregation) {
                admission.apply(hdr, meta, standard_metadata);
                if (!meta.dropped && !meta.passes) {
                    hear_congestion.apply(hdr, meta);
                    // A job without a lease.
                    if (meta.slot_mask == 0) {
                        shared_slots.apply(hdr, meta, standard_metadata);
                    } else {
                        // Both versions of a slot belong to one stripe.
                        @stripe((meta.slot_base + (hdr.inagg.chunk & (meta.slot_mask >> 1))) >> RUN_BITS) {
                            slots.apply(hdr, meta, standard_metadata);
                        }
                    }
                }
            } else if (hdr.beacon.isValid()) {
                beacons.apply(hdr, meta, standard_metadata);
            } else {
                source_guard.apply(hdr, meta, standard_metadata);
                if (!meta.dropped) {
                    arp_responder.apply(hdr, meta, standard_metadata);
                    ping_responder.apply(hdr, meta, standard_metadata);
                    if (!meta.answered) {
                        l2.apply(hdr, meta, standard_metadata);
                    }
                }
            }
        }
    }
}

control InaggEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    EgressLoss() egress_loss;
    Delivery() delivery;
    MarkCongestion() mark_congestion;
    SplitHorizon() split_horizon;

    apply {
        egress_loss.apply(meta, standard_metadata);
        if (!meta.dropped) {
            if (meta.aggregation) {
                if (!meta.to_parent && !meta.passes) {
                    delivery.apply(hdr, meta, standard_metadata);
                }
            } else {
                split_horizon.apply(meta, standard_metadata);
            }
            if (!meta.dropped) {
                mark_congestion.apply(hdr, meta, standard_metadata);
            }
        }
    }
}

V1Switch(InaggParser(), InaggVerifyChecksum(), InaggIngress(), InaggEgress(), InaggComputeChecksum(),
         InaggDeparser()) main;
