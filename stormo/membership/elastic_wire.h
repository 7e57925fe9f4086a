#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <variant>

#include <stormo/membership/elastic_record.h>
#include <stormo/membership/epoch_record.h>
#include <stormo/protocol/elastic/elastic_message.h>
#include <stormo/transport/call/fields.h>

// The bytes of what members of an elastic job tell each other. A frame with a MemberId comes first,
// from both ends of a connection. Each one that follows has an optional ElasticMessage. If it is
// empty the connection ends, and its sender lives on, or leaves in order.

namespace stormo::protocol {

inline constexpr std::string_view kElasticProtocol = "members";

void fields(auto& visit, transport::Like<MemberId> auto& id) {
  visit("name of a member", transport::at_most(membership::kMaxNameBytes, id.identity),
        id.incarnation);
  visit.require(!id.identity.empty(), "a member without a name");
}
void fields(auto& visit, transport::Like<ElasticEntry> auto& entry) {
  visit("member", entry.id, transport::at_most(membership::kMaxNameBytes, entry.address),
        entry.shares, entry.part);
}
void fields(auto& visit, transport::Like<ElasticRecord> auto& record) {
  visit("record of an epoch", record.epoch,
        transport::at_most(membership::kMaxMembers, record.members), record.base_step,
        record.state_hash, record.plan_hash,
        transport::at_most(membership::kMaxMembers, record.donors), record.group);
}
inline bool is_record(const ElasticRecord& record) {
  return check(membership::epoch_record_of(record, "job")).ok();
}
void fields(auto& visit, transport::Like<HeldState> auto& held) {
  visit("state of a member", held.step, held.is_whole, held.state_hash, held.gradient_hash,
        held.prepared_step, held.prepared_hash);
}
void fields(auto& visit, transport::Like<MemberStatus> auto& status) {
  visit("status of a member", status.from, status.epoch,
        transport::within(status.standing, Standing::kOutside, Standing::kResting), status.held,
        status.progress, status.is_waiting, status.leaves, status.stop_after,
        transport::at_most(membership::kMaxMembers, status.heard),
        transport::at_most(membership::kMaxMembers, status.dead), status.plan_hash,
        transport::at_most(membership::kMaxNameBytes, status.address), status.shares, status.part,
        status.wish, status.ready_group);
  visit.require(status.shares > 0, "a member without a share of the batch");
  if constexpr (!std::is_const_v<std::remove_reference_t<decltype(status)>>) {
    visit.require(status.wish.epoch == 0 || is_record(status.wish), "a wish that is no record");
  }
}
void fields(auto& visit, transport::Like<RecordNews> auto& news) {
  visit("news of the register", news.record);
  if constexpr (!std::is_const_v<std::remove_reference_t<decltype(news)>>) {
    visit.require(is_record(news.record), "a record that no register takes");
  }
}
void fields(auto& visit, transport::Like<ElasticMessage> auto& message) {
  auto kind = static_cast<std::uint8_t>(message.index());
  visit("message", transport::within(kind, 0, 1));
  if constexpr (!std::is_const_v<std::remove_reference_t<decltype(message)>>) {
    if (kind == 1) message.template emplace<RecordNews>();
  }
  std::visit([&](auto& one) { visit("", one); }, message);
}

}  // namespace stormo::protocol

namespace stormo::membership {

/// The longest body of a frame.
inline constexpr std::size_t kMaxElasticBytes = 2 * kMaxRecordBytes;

}  // namespace stormo::membership
