#include <stormo/membership/epoch_record.h>

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace stormo::membership {

using transport::at_most;
using transport::Like;

void fields(auto& visit, Like<Member> auto& member) {
  visit("member", at_most(kMaxNameBytes, member.identity), member.incarnation,
        at_most(kMaxNameBytes, member.address), member.shares, member.part);
}

void fields(auto& visit, Like<EpochRecord> auto& record) {
  visit("record of an epoch", at_most(kMaxNameBytes, record.job), record.epoch,
        at_most(kMaxMembers, record.members), record.base_step, record.state_hash, record.plan_hash,
        at_most(kMaxMembers, record.donors), record.group);
}

Status check(const EpochRecord& record) {
  std::vector<std::string> wrong;
  const auto check_name = [&](std::string_view what, std::string_view name) {
    if (name.empty() || name.size() > kMaxNameBytes) {
      wrong.push_back(
          fmt::format("{} has 1 to {} bytes, not {}", what, kMaxNameBytes, name.size()));
    }
  };
  check_name("the name of the job", record.job);
  if (record.epoch == 0) wrong.emplace_back("epoch 0 is that of no record");
  if (record.members.empty() || record.members.size() > kMaxMembers) {
    wrong.push_back(fmt::format("1 to {} members, not {}", kMaxMembers, record.members.size()));
  }
  std::set<std::string_view> identities;
  for (const Member& m : record.members) {
    check_name("the identity of a member", m.identity);
    check_name(fmt::format("the address of {}", m.identity), m.address);
    if (m.shares == 0) wrong.push_back(fmt::format("{} has no share of the batch", m.identity));
    if (!identities.insert(m.identity).second) {
      wrong.push_back(fmt::format("{} is a member twice", m.identity));
    }
  }
  for (const std::string& donor : record.donors) {
    if (!identities.contains(donor)) {
      wrong.push_back(fmt::format("the donor {} is no member", donor));
    }
  }
  if (wrong.empty() && encode_record(record).size() > kMaxRecordBytes) {
    wrong.push_back(fmt::format("it has more than {} bytes", kMaxRecordBytes));
  }
  if (wrong.empty()) return {};
  return invalid_argument(
      fmt::format("the record of epoch {}: {}", record.epoch, fmt::join(wrong, "; ")));
}

std::string encode_record(const EpochRecord& record) { return transport::encode(record); }

Result<EpochRecord> decode_record(std::string_view bytes) {
  STORMO_ASSIGN_OR_RETURN(EpochRecord record,
                          transport::decode<EpochRecord>("register of members", bytes));
  if (const Status wrong = check(record); !wrong.ok()) {
    return Status(Code::kCorrupt, wrong.message());
  }
  return record;
}

}  // namespace stormo::membership
