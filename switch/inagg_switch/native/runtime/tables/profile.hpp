// SPDX-License-Identifier: Apache-2.0
//
// Action profiles and selectors. A member is an action with parameters; table entries refer to a member, or
// to a group of members, by id.
//
// A selector picks the member of a group as BMv2 does (src/bm_sim/action_profile.cpp): it sorts the members
// by handle and takes number `hash modulo size`. A new handle is the lowest free number. A member of weight w
// is in the group w times, each time with another handle, as in BMv2's P4Runtime front end.
#ifndef INAGG_SWITCH_PROFILE_HPP
#define INAGG_SWITCH_PROFILE_HPP

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "program.h"
#include "tables/table_info.hpp"

namespace isw {

struct ProfileMember {
    std::uint32_t id = 0;
    std::uint32_t action = 0;  // P4Info id
    std::uint32_t action_index = 0;
    std::vector<std::uint64_t> params;
    std::uint32_t entries = 0;                   // number of table entries that refer to it
    std::map<std::size_t, std::size_t> weights;  // number of groups by its weight there
    std::vector<std::uint32_t> handles;          // at least one
};

struct ProfileGroup {
    std::uint32_t id = 0;
    std::uint32_t entries = 0;
    std::vector<ProfileMember*> slots;  // in order of handles
};

// The member or group that an entry refers to, or neither.
struct Indirect {
    ProfileMember* member = nullptr;
    ProfileGroup* group = nullptr;

    // The member whose action runs, or NULL. Calls `hash` for groups only.
    template <class F>
    const ProfileMember* choose(F hash) const {
        if (group == nullptr) return member;
        if (group->slots.empty()) return nullptr;
        return group->slots[static_cast<std::uint32_t>(hash()) % group->slots.size()];
    }
    std::uint32_t kind() const {
        return group != nullptr ? ISW_GROUP : member != nullptr ? ISW_MEMBER : ISW_ACTION;
    }
    std::uint32_t id() const { return group != nullptr ? group->id : member != nullptr ? member->id : 0; }
};

class ActionProfile {
  public:
    explicit ActionProfile(const ProfileInfo& info) : info_(info) {}

    int insert_member(std::uint32_t id, std::uint32_t action, const std::uint8_t* params,
                      std::size_t length) {
        if (members_.contains(id)) return -EEXIST;
        if (members_.size() >= info_.size) return -ENOSPC;
        auto made = std::make_unique<ProfileMember>();
        made->id = id;
        const int error = set_action(*made, action, params, length);
        if (error != 0) return error;
        made->handles.push_back(take_handle());
        members_.emplace(id, std::move(made));
        return 0;
    }
    int modify_member(std::uint32_t id, std::uint32_t action, const std::uint8_t* params,
                      std::size_t length) {
        const auto found = members_.find(id);
        return found == members_.end() ? -ENOENT : set_action(*found->second, action, params, length);
    }
    int delete_member(std::uint32_t id) {
        const auto found = members_.find(id);
        if (found == members_.end()) return -ENOENT;
        if (found->second->entries != 0 || !found->second->weights.empty()) return -EBUSY;
        for (const std::uint32_t handle : found->second->handles) free_handles_.insert(handle);
        members_.erase(found);
        return 0;
    }

    int set_group(std::uint32_t id, const std::uint32_t* members, std::size_t count) {
        std::map<std::uint32_t, std::size_t> weights;
        for (std::size_t i = 0; i < count; ++i) {
            if (!members_.contains(members[i])) return -ENOENT;
            ++weights[members[i]];
        }
        auto& group = groups_[id];
        if (group == nullptr) group = std::make_unique<ProfileGroup>();
        group->id = id;
        std::vector<std::pair<std::uint32_t, ProfileMember*>> slots;
        for (const auto& [member_id, weight] : weights) {
            ProfileMember& member = *members_.at(member_id);
            while (member.handles.size() < weight) member.handles.push_back(take_handle());
            for (std::size_t i = 0; i < weight; ++i) slots.emplace_back(member.handles[i], &member);
            ++member.weights[weight];
        }
        std::sort(slots.begin(), slots.end());
        const std::vector<ProfileMember*> before = std::move(group->slots);
        group->slots.clear();
        for (const auto& slot : slots) group->slots.push_back(slot.second);
        let_go(before);
        return 0;
    }
    int delete_group(std::uint32_t id) {
        const auto found = groups_.find(id);
        if (found == groups_.end()) return -ENOENT;
        if (found->second->entries != 0) return -EBUSY;
        const auto group = std::move(found->second);
        groups_.erase(found);
        let_go(group->slots);
        return 0;
    }

    void visit_members(isw_profile_fn visit, void* ctx) const {
        for (const auto& [id, member] : members_) {
            const auto params = encode_params(info_.actions[member->action_index], member->params);
            const isw_profile_entry shown{id, member->action, params.data(), params.size(), nullptr, 0};
            visit(ctx, &shown);
        }
    }
    void visit_groups(isw_profile_fn visit, void* ctx) const {
        for (const auto& [id, group] : groups_) {
            std::vector<std::uint32_t> ids;
            for (const ProfileMember* member : group->slots) ids.push_back(member->id);
            std::sort(ids.begin(), ids.end());
            const isw_profile_entry shown{id, 0, nullptr, 0, ids.data(), ids.size()};
            visit(ctx, &shown);
        }
    }

    // Sets `out` to the member or group with this id and counts the reference. -ENOENT if it does not exist.
    int refer(std::uint32_t kind, std::uint32_t id, Indirect& out) {
        if (kind == ISW_MEMBER) {
            const auto found = members_.find(id);
            if (found == members_.end()) return -ENOENT;
            out = Indirect{found->second.get(), nullptr};
            ++found->second->entries;
        } else if (kind == ISW_GROUP) {
            const auto found = groups_.find(id);
            if (found == groups_.end()) return -ENOENT;
            out = Indirect{nullptr, found->second.get()};
            ++found->second->entries;
        } else {
            return -EINVAL;
        }
        return 0;
    }
    static void release(Indirect& indirect) {
        if (indirect.member != nullptr) --indirect.member->entries;
        if (indirect.group != nullptr) --indirect.group->entries;
        indirect = Indirect{};
    }

  private:
    int set_action(ProfileMember& member, std::uint32_t action, const std::uint8_t* params,
                   std::size_t length) {
        for (std::uint32_t i = 0; i < info_.action_count; ++i) {
            if (info_.actions[i].id != action) continue;
            if (!info_.actions[i].in_entries) return -EPERM;
            std::vector<std::uint64_t> limbs;
            if (!decode_params(info_.actions[i], params, length, limbs)) return -EINVAL;
            member.action = action;
            member.action_index = i;
            member.params = std::move(limbs);
            return 0;
        }
        return -ENOENT;
    }
    std::uint32_t take_handle() {
        if (free_handles_.empty()) return next_handle_++;
        const std::uint32_t handle = *free_handles_.begin();
        free_handles_.erase(free_handles_.begin());
        return handle;
    }
    // Undoes the use of `slots` by a group that is deleted or replaced. Frees the handles of each member that
    // its highest remaining weight does not need.
    void let_go(const std::vector<ProfileMember*>& slots) {
        std::map<ProfileMember*, std::size_t> weights;
        for (ProfileMember* member : slots) ++weights[member];
        for (const auto& [member, weight] : weights) {
            const auto had = member->weights.find(weight);
            if (--had->second == 0) member->weights.erase(had);
            const std::size_t most = member->weights.empty() ? 1 : member->weights.rbegin()->first;
            while (member->handles.size() > most) {
                free_handles_.insert(member->handles.back());
                member->handles.pop_back();
            }
        }
    }

    const ProfileInfo& info_;
    std::map<std::uint32_t, std::unique_ptr<ProfileMember>> members_;
    std::map<std::uint32_t, std::unique_ptr<ProfileGroup>> groups_;
    std::set<std::uint32_t> free_handles_;
    std::uint32_t next_handle_ = 0;
};

}  // namespace isw

#endif  // INAGG_SWITCH_PROFILE_HPP
