#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <stormo/protocol/elastic/elastic_message.h>

namespace stormo::protocol {

/// Somebody who may be in the next epoch. All that it says holds until that epoch begins.
struct Survivor {
  ElasticEntry entry{};
  HeldState held{};
  std::vector<MemberId> heard{};  ///< by this one
  bool leaves = false;
  bool is_member = true;  ///< of the present epoch
};

/// Of somebody outside, as it says.
ElasticEntry entry_of(const MemberStatus& candidate);
/// Behind the last one of its host: ranks are numbered host by host.
void insert_on_host(const ElasticEntry& entry, std::vector<ElasticEntry>& members);

/// Those that hear each other, by index, in the order of `all`: a large set, found greedily.
/// Members are preferred to those outside, and whoever hears and is heard by more. Whether two
/// outside hear each other is not known yet.
std::vector<std::size_t> mutual_set(std::span<const Survivor> all);

/// From which step survivors go on.
struct Base {
  std::uint64_t step = 0;
  /// 0: nobody has applied the step yet, or survivors have several parts of the model.
  std::uint64_t state_hash = 0;
  std::vector<bool> holds{};  ///< by survivor: has the state, or the gradients that lead to it
};

/// Empty if nobody among them has the state.
///
/// Whoever passes the agreement on step n knows that every member holds its whole gradient. So if
/// one has committed n, or all that are left hold the gradient of n, n is committed: what any
/// member has committed is never lost, wherever that member is now. Else nobody can have passed,
/// and n is redone. Where states of one part differ, most are right.
std::optional<Base> find_base(std::span<const Survivor> survivors);

/// The record that follows on `present`; empty if there is a part of whose state nobody among them
/// has it. Members that leave are left out, unless only they have some part, or a member is lost:
/// then more may be, and they leave after the next step.
std::optional<ElasticRecord> next_record(const ElasticRecord& present,
                                         std::span<const Survivor> survivors);

}  // namespace stormo::protocol
