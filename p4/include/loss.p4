// SPDX-License-Identifier: Apache-2.0
//
// Loss injection (protocol.md, 8), like a lossy link: one Bernoulli trial for each packet, with a probability for each
// port, direction and class of traffic. Both tables are empty unless the controller asks for loss.

control IngressLoss(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    counter(512, CounterType.packets_and_bytes) ingress_loss_injected;

    // `threshold` is the loss probability times 2^32.
    action inject_ingress_loss(bit<32> threshold) {
        bit<32> draw;
        random(draw, 0, 0xFFFFFFFF);
        meta.dropped = draw < threshold;
    }

    table ingress_loss {
        key = {
            standard_metadata.ingress_port : exact @name("port");
            meta.aggregation : exact @name("aggregation");
        }
        actions = { inject_ingress_loss; NoAction; }
        size = 1024;
        const default_action = NoAction();
    }

    apply {
        ingress_loss.apply();
        if (meta.dropped) {
            ingress_loss_injected.count((bit<32>) standard_metadata.ingress_port);
            mark_to_drop(standard_metadata);
        }
    }
}

// Runs once for every copy of a multicast, so the losses of receivers are independent.
control EgressLoss(inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    counter(512, CounterType.packets_and_bytes) egress_loss_injected;

    action inject_egress_loss(bit<32> threshold) {
        bit<32> draw;
        random(draw, 0, 0xFFFFFFFF);
        meta.dropped = draw < threshold;
    }

    table egress_loss {
        key = {
            standard_metadata.egress_port : exact @name("port");
            meta.aggregation : exact @name("aggregation");
        }
        actions = { inject_egress_loss; NoAction; }
        size = 1024;
        const default_action = NoAction();
    }

    apply {
        egress_loss.apply();
        if (meta.dropped) {
            egress_loss_injected.count((bit<32>) standard_metadata.egress_port);
            mark_to_drop(standard_metadata);
        }
    }
}
