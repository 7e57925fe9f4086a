// Where the ranks of a host share one copy of the state, which outlives each of them.
#include <stormo/train/run/elastic_run.h>

#include <algorithm>

#include <fmt/format.h>

#include <stormo/base/rng.h>

namespace stormo::train {

/// Null: each rank has a copy of its own.
HostCopyStore* ElasticRun::shared() { return dynamic_cast<HostCopyStore*>(&model_.store()); }

// Where the ranks of a host did share a copy, and do not now, each goes on with one of its own. One
// that is alone on its host has it already. The memory is kept: when they share a copy again, new
// pages would take longer than what is copied.
Status ElasticRun::share_state(bool has_state) {
  HostCopyStore* const copy = shared();
  KeptState& kept = session_.kept;
  if (copy != nullptr) {
    copy->set_say([this](const std::string& line) { session_.say(line); });
    return copy->share({.memory = kept.memory, .has_values = kept.memory_has_values}, has_state);
  }
  if (!kept.memory_has_values || run_.world.local_size() == 1) return {};
  HostCopy::leave(dynamic_cast<FusedOptimizer&>(model_.store().optimizer()));
  kept.memory_has_values = false;
  return {};
}

/// One for each host that shares a copy, and none where a donor has it.
bool ElasticRun::gets_slices(const protocol::ElasticEntry& member) {
  const protocol::ElasticRecord& record = session_.record();
  if (record.is_donor(member.id.identity)) return false;
  if (shared() == nullptr) return true;
  const std::string_view host = protocol::host_of(member.id.identity);
  const auto is_here = [&](const auto& identity) { return protocol::host_of(identity) == host; };
  if (std::ranges::any_of(record.donors, is_here)) return false;
  const auto first = std::ranges::find_if(
      record.members, [&](const protocol::ElasticEntry& m) { return is_here(m.id.identity); });
  return first->id == member.id;
}

/// Never 0. On one host no rank has the sum: it is made when all have agreed. And ranks that train
/// by themselves have their own. Then it says of which step and group the terms are.
std::uint64_t ElasticRun::gradient_hash() {
  if (!is_local() && (shared() == nullptr || shared()->has_whole_gradients())) {
    return hash_of_gradients(model_.store().optimizer(), order_.step);
  }
  return fnv1a(fmt::format("epoch {}, step {}", order_.epoch, order_.step)) | 1;
}

}  // namespace stormo::train
