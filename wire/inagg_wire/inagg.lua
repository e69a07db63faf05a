-- SPDX-License-Identifier: Apache-2.0
--
-- Wireshark's dissector of inagg's packets (docs/protocol.md, 2, 5.7 and 7.3) and beacons:
--
--     wireshark -X lua_script:$(inagg decode --dissector) capture.pcap
--
-- UDP datagrams from and to INAGG_PORT are inagg's. At other ports, which servers use (5.6), a datagram counts as inagg's
-- if its first packet has right check fields. A message of several packets (GSO) is shown packet by packet.
-- Filters: inagg.chunk == 5, inagg.kind == 10, inagg.rank == 1, inagg.check_wrong

-- As in p4/include/constants.p4; a test compares them.
local INAGG_VERSION = 4
local INAGG_PORT = 18753
local KIND_EXPONENT = 1
local KIND_DATA = 2
local KIND_QUERY = 4
local KIND_RESULT = 8
local FLAG_AGAIN = 32
local FLAG_CONGESTED = 16
local EXPONENT_CHECK = 341
local MAX_EXPONENT = 682
local INAGG_HEADER_BYTES = 20
local MEMBERS_BYTES = 8
local WORD_BYTES = 256
local ETHERTYPE_BEACON = 34998
-- Flags of hosts, which the switch does not know (3.2, 3.3).
local FLAG_SPECIAL = 1
local FLAG_NOT_READY = 2
local FLAG_WIDE = 4

local MOST_WORDS = 64

local kinds = {}
for modifiers, suffix in pairs({
    [0] = "", [KIND_QUERY] = " query", [KIND_RESULT] = " result", [KIND_RESULT + KIND_QUERY] = " answer",
}) do
    kinds[KIND_EXPONENT + modifiers] = "EXPONENT" .. suffix
    kinds[KIND_DATA + modifiers] = "DATA" .. suffix
end

local inagg = Proto("inagg", "In-network aggregation")
local f = {
    version = ProtoField.uint8("inagg.version", "Version", base.DEC, nil, 0xf0),
    kind = ProtoField.uint8("inagg.kind", "Kind", base.DEC, kinds, 0x0f),
    rank = ProtoField.uint8("inagg.rank", "Rank", base.DEC),
    job = ProtoField.uint16("inagg.job", "Job", base.DEC),
    flags = ProtoField.uint16("inagg.flags", "Flags", base.HEX, nil, 0xfc00),
    exponent = ProtoField.uint16("inagg.exponent", "Exponent", base.DEC, nil, 0x03ff),
    flags_check = ProtoField.uint16("inagg.flags_check", "Flags check", base.HEX, nil, 0xfc00),
    exponent_check = ProtoField.uint16("inagg.exponent_check", "Exponent check", base.DEC, nil, 0x03ff),
    epoch = ProtoField.uint32("inagg.epoch", "Epoch", base.HEX),
    chunk = ProtoField.uint32("inagg.chunk", "Chunk", base.DEC),
    checksum = ProtoField.uint32("inagg.checksum", "Checksum", base.HEX),
    members = ProtoField.uint64("inagg.members", "Members", base.HEX),
    waits_with = ProtoField.uint64("inagg.waits_with", "Waits with", base.HEX),
    words = ProtoField.bytes("inagg.words", "Words"),
}
local flag_fields = {
    { FLAG_SPECIAL, "special" }, { FLAG_NOT_READY, "not_ready" }, { FLAG_WIDE, "wide" },
    { FLAG_CONGESTED, "congested" }, { FLAG_AGAIN, "again" },
}
for _, flag in ipairs(flag_fields) do
    flag[3] = ProtoField.bool("inagg.flags." .. flag[2], flag[2], 16, nil, flag[1] * 1024)
    f["flag_" .. flag[2]] = flag[3]
end
inagg.fields = f
local check_wrong = ProtoExpert.new("inagg.check_wrong", "Check fields do not match", expert.group.CHECKSUM,
                                    expert.severity.ERROR)
local too_great = ProtoExpert.new("inagg.exponent_too_great", "Exponent is above MAX_EXPONENT", expert.group.MALFORMED,
                                  expert.severity.ERROR)
local malformed = ProtoExpert.new("inagg.malformed", "Not a packet of this version of the protocol",
                                  expert.group.MALFORMED, expert.severity.ERROR)
inagg.experts = { check_wrong, too_great, malformed }

local function has(value, bit) return math.floor(value / bit) % 2 == 1 end

local function without_result(kind) return has(kind, KIND_RESULT) and kind - KIND_RESULT or kind end

-- Bytes of bits (5.7) in a packet of this kind and length; nil if there is no such packet.
local function bits(kind, length)
    if kinds[kind] == nil or length < INAGG_HEADER_BYTES then return nil end
    local rest = (length - INAGG_HEADER_BYTES) % WORD_BYTES
    local words = (length - INAGG_HEADER_BYTES - rest) / WORD_BYTES
    if (words > 0) ~= (without_result(kind) == KIND_DATA) or words > MOST_WORDS then return nil end
    if rest == 0 then return 0 end
    local own = MEMBERS_BYTES * (has(kind, KIND_QUERY) and 2 or 1)
    return rest == own and not has(kind, KIND_RESULT) and own or nil
end

-- Whether each packet of `size` bytes, and a last one that may be shorter, begins as the first does.
local function parts_fit(buffer, size)
    local length, captured = buffer:reported_len(), buffer:captured_len()
    for offset = size, length - 1, size do
        if captured < offset + INAGG_HEADER_BYTES then return false end
        local kind = buffer(offset, 1):uint() % 16
        local first = buffer(0, 1):uint()
        if bits(kind, math.min(size, length - offset)) == nil or math.floor(buffer(offset, 1):uint() / 16) ~= math.floor(first / 16)
            or has(kind, KIND_RESULT) ~= has(first % 16, KIND_RESULT)
            or buffer(offset + 2, 2):uint() ~= buffer(2, 2):uint()
            or buffer(offset + 8, 4):uint() ~= buffer(8, 4):uint() then
            return false
        end
    end
    return true
end

-- The length of the packets in a datagram; nil if it is no packet's, or cannot be known.
local function part_length(buffer)
    local length, captured = buffer:reported_len(), buffer:captured_len()
    if captured < INAGG_HEADER_BYTES or math.floor(buffer(0, 1):uint() / 16) ~= INAGG_VERSION then return nil end
    local kind = buffer(0, 1):uint() % 16
    if bits(kind, length) ~= nil then return length end
    local own = has(kind, KIND_QUERY) and 2 * MEMBERS_BYTES or MEMBERS_BYTES
    for words = 0, MOST_WORDS do
        for _, more in ipairs({ 0, own }) do
            local size = INAGG_HEADER_BYTES + WORD_BYTES * words + more
            if size < length and bits(kind, size) ~= nil and parts_fit(buffer, size) then return size end
        end
    end
    return nil
end

local function described(buffer)
    local kind, rank = buffer(0, 1):uint() % 16, buffer(1, 1):uint()
    local flags = math.floor(buffer(4, 2):uint() / 1024)
    local text = string.format("%s, rank %d, chunk %d", kinds[kind], rank, buffer(12, 4):uint())
    if has(kind, KIND_QUERY) then
        if has(kind, KIND_RESULT) then text = text .. (has(flags, FLAG_AGAIN) and ": again" or ": held") end
        return text
    end
    for _, flag in ipairs(flag_fields) do
        if has(flags, flag[1]) then text = text .. ", " .. flag[2]:gsub("_", " ") end
    end
    return text
end

local function dissect_packet(buffer, tree, length)
    local kind = buffer(0, 1):uint() % 16
    local stated, check = buffer(4, 2):uint(), buffer(6, 2):uint()
    local captured = buffer:captured_len()
    local part = tree:add(inagg, buffer(0, math.min(length, captured)), "inagg: " .. described(buffer))
    part:add(f.version, buffer(0, 1))
    part:add(f.kind, buffer(0, 1))
    part:add(f.rank, buffer(1, 1))
    part:add(f.job, buffer(2, 2))
    local flags = part:add(f.flags, buffer(4, 2))
    for _, flag in ipairs(flag_fields) do flags:add(flag[3], buffer(4, 2)) end
    local exponent = part:add(f.exponent, buffer(4, 2))
    part:add(f.flags_check, buffer(6, 2))
    local exponent_check = part:add(f.exponent_check, buffer(6, 2))
    part:add(f.epoch, buffer(8, 4))
    part:add(f.chunk, buffer(12, 4))
    part:add(f.checksum, buffer(16, 4))
    if check % 1024 ~= stated % 1024 + EXPONENT_CHECK or math.floor(check / 1024) ~= math.floor(stated / 1024) then
        exponent_check:add_proto_expert_info(check_wrong)
    end
    if stated % 1024 > MAX_EXPONENT then exponent:add_proto_expert_info(too_great) end
    local at, own = INAGG_HEADER_BYTES, bits(kind, length)
    for _, field in ipairs({ f.members, f.waits_with }) do
        if own >= MEMBERS_BYTES and at + MEMBERS_BYTES <= captured then part:add(field, buffer(at, MEMBERS_BYTES)) end
        if own >= MEMBERS_BYTES then at = at + MEMBERS_BYTES end
        own = own - MEMBERS_BYTES
    end
    if length > at and captured > at then part:add(f.words, buffer(at, math.min(length, captured) - at)) end
end

function inagg.dissector(buffer, pinfo, tree)
    pinfo.cols.protocol = "inagg"
    local length, size = buffer:reported_len(), part_length(buffer)
    if size == nil then
        local all = tree:add(inagg, buffer())
        all:add_proto_expert_info(malformed)
        if buffer:captured_len() >= 1 then
            all:add(f.version, buffer(0, 1))
            all:add(f.kind, buffer(0, 1))
        end
        pinfo.cols.info = string.format("malformed, or cut by the capture: %d bytes", length)
        return buffer:captured_len()
    end
    local count, last = 0, 0
    for offset = 0, length - 1, size do
        if buffer:captured_len() < offset + INAGG_HEADER_BYTES then break end
        dissect_packet(buffer(offset):tvb(), tree, math.min(size, length - offset))
        count, last = count + 1, offset
    end
    local info = described(buffer)
    if count > 1 then info = string.format("%s ... %s (%d packets)", info, described(buffer(last):tvb()), count) end
    pinfo.cols.info = info
    return length
end

local function heuristic(buffer, pinfo, tree)
    if part_length(buffer) == nil then return false end
    local stated, check = buffer(4, 2):uint(), buffer(6, 2):uint()
    if check ~= stated + EXPONENT_CHECK then return false end
    inagg.dissector(buffer, pinfo, tree)
    return true
end

DissectorTable.get("udp.port"):add(INAGG_PORT, inagg)
inagg:register_heuristic("udp", heuristic)

local beacon = Proto("inagg_beacon", "inagg beacon")
local b = {
    out_port = ProtoField.uint16("inagg_beacon.out_port", "Leaves by port", base.DEC),
    in_port = ProtoField.uint16("inagg_beacon.in_port", "Came to port", base.DEC),
    secret = ProtoField.bytes("inagg_beacon.secret", "Secret"),
    switch = ProtoField.uint16("inagg_beacon.switch", "Number of the sending switch", base.DEC),
}
beacon.fields = b

function beacon.dissector(buffer, pinfo, tree)
    if buffer:captured_len() < 22 then return 0 end
    local part = tree:add(beacon, buffer(0, 22))
    part:add(b.out_port, buffer(0, 2))
    part:add(b.in_port, buffer(2, 2))
    part:add(b.secret, buffer(4, 16))
    part:add(b.switch, buffer(20, 2))
    pinfo.cols.protocol = "inagg"
    pinfo.cols.info = string.format("beacon of switch %d, port %d", buffer(20, 2):uint(), buffer(0, 2):uint())
    return 22
end

DissectorTable.get("ethertype"):add(ETHERTYPE_BEACON, beacon)
