#include <stormo/plan/schedule.h>

#include <stormo/plan/hash.h>

namespace stormo::plan {

std::string_view to_string(GoalKind kind) {
  switch (kind) {
    case GoalKind::kAllReduce: return "all_reduce";
    case GoalKind::kReduceScatter: return "reduce_scatter";
    case GoalKind::kAllGather: return "all_gather";
    case GoalKind::kBroadcast: return "broadcast";
    case GoalKind::kReduce: return "reduce";
    case GoalKind::kGather: return "gather";
    case GoalKind::kScatter: return "scatter";
    case GoalKind::kScan: return "scan";
    case GoalKind::kAllToAll: return "all_to_all";
  }
  return "unknown";
}

std::optional<Rank> only_source(const Schedule& s, ChunkId chunk) {
  switch (s.goal.kind) {
    case GoalKind::kAllGather:
    case GoalKind::kGather: return owner(s, chunk);
    case GoalKind::kBroadcast:
    case GoalKind::kScatter: return s.goal.root;
    case GoalKind::kAllToAll: return sender(s, chunk);
    case GoalKind::kAllReduce:
    case GoalKind::kReduceScatter:
    case GoalKind::kReduce:
    case GoalKind::kScan: break;
  }
  return std::nullopt;
}

std::optional<Rank> only_target(const Schedule& s, ChunkId chunk) {
  switch (s.goal.kind) {
    case GoalKind::kReduceScatter:
    case GoalKind::kScatter: return owner(s, chunk);
    case GoalKind::kReduce:
    case GoalKind::kGather: return s.goal.root;
    case GoalKind::kAllToAll: return addressee(s, chunk);
    case GoalKind::kAllReduce:
    case GoalKind::kAllGather:
    case GoalKind::kBroadcast:
    case GoalKind::kScan: break;
  }
  return std::nullopt;
}

Terms terms_at(const Schedule& s, Rank r) {
  switch (s.goal.kind) {
    case GoalKind::kScan: return {0, r + 1};
    case GoalKind::kAllReduce:
    case GoalKind::kReduceScatter:
    case GoalKind::kReduce:
    case GoalKind::kAllGather:
    case GoalKind::kBroadcast:
    case GoalKind::kGather:
    case GoalKind::kScatter:
    case GoalKind::kAllToAll: break;
  }
  return {0, s.ranks};
}

std::uint64_t hash(const Schedule& s) {
  StableHash h;
  h.add("schedule v1");
  h.add(s.name);
  h.add(static_cast<std::uint64_t>(s.goal.kind));
  h.add(static_cast<std::uint64_t>(s.goal.root));
  h.add(static_cast<std::uint64_t>(s.ranks));
  h.add(static_cast<std::uint64_t>(s.chunks));
  h.add(std::uint64_t{s.rounds.size()});
  const auto pair = [](int high, int low) {
    return std::uint64_t{static_cast<std::uint32_t>(high)} << 32 | static_cast<std::uint32_t>(low);
  };
  for (const Round& round : s.rounds) {
    h.add(std::uint64_t{round.size()});
    for (const Transfer& t : round) {
      h.add(pair(t.from, t.to));
      h.add(pair(t.chunk, static_cast<int>(t.how)));
    }
  }
  return h.value();
}

}  // namespace stormo::plan
