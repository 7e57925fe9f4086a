#include <stormo/schedule/compose.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>
#include <vector>

#include <stormo/base/check.h>
#include <stormo/plan/limits.h>

namespace stormo::schedule {

plan::Schedule without_rounds(std::string name, plan::Goal goal, int ranks, int chunks) {
  STORMO_CHECK(ranks >= 1 && ranks <= plan::kMaxRanks, "schedule: ranks out of range");
  STORMO_CHECK(chunks >= 1 && chunks <= plan::kMaxChunks, "schedule: chunks out of range");
  STORMO_CHECK(goal.root >= 0 && goal.root < ranks, "schedule: root out of range");
  return {std::move(name), goal, ranks, chunks, {}};
}

plan::Schedule then(plan::Schedule a, plan::Schedule b) {
  STORMO_CHECK(a.ranks == b.ranks && a.chunks == b.chunks, "then: schedules of different shape");
  std::ranges::move(b.rounds, std::back_inserter(a.rounds));
  return a;
}

plan::Schedule on_group(const plan::Schedule& s, std::span<const Rank> ranks, int total_ranks,
                        const ChunkPlacement& placement) {
  STORMO_CHECK(static_cast<int>(ranks.size()) == s.ranks,
               "on_group: one rank per member is needed");
  STORMO_CHECK(std::ranges::all_of(ranks, [&](Rank r) { return r >= 0 && r < total_ranks; }),
               "on_group: rank outside of the larger group");
  STORMO_CHECK(placement.width >= 1 && placement.offset >= 0 &&
                   s.chunks <= (placement.chunks - placement.offset) / placement.width,
               "on_group: chunks do not fit into the larger buffer");
  plan::Schedule out{s.name, s.goal, total_ranks, placement.chunks, {}};
  for (const plan::Round& round : s.rounds) {
    plan::Round& wide = out.rounds.emplace_back();
    wide.reserve(round.size() * static_cast<std::size_t>(placement.width));
    for (const plan::Transfer& t : round) {
      const int first = placement.offset + t.chunk * placement.width;
      for (int i = 0; i < placement.width; ++i) {
        wide.push_back({ranks[static_cast<std::size_t>(t.from)],
                        ranks[static_cast<std::size_t>(t.to)], first + i, t.how});
      }
    }
  }
  return out;
}

plan::Schedule side_by_side(std::span<const plan::Schedule> parts) {
  STORMO_CHECK(!parts.empty(), "side_by_side: nothing to put side by side");
  plan::Schedule out = parts.front();
  for (const plan::Schedule& part : parts.subspan(1)) {
    STORMO_CHECK(part.ranks == out.ranks && part.chunks == out.chunks,
                 "side_by_side: schedules of different shape");
    if (part.rounds.size() > out.rounds.size()) out.rounds.resize(part.rounds.size());
    for (std::size_t i = 0; i < part.rounds.size(); ++i) {
      std::ranges::copy(part.rounds[i], std::back_inserter(out.rounds[i]));
    }
  }
  return out;
}

plan::Schedule reversed(plan::Schedule s, plan::ReceiveOp how) {
  std::ranges::reverse(s.rounds);
  for (plan::Round& round : s.rounds) {
    for (plan::Transfer& t : round) t = {.from = t.to, .to = t.from, .chunk = t.chunk, .how = how};
  }
  return s;
}

plan::Schedule in_pieces(plan::Schedule s, int pieces) {
  STORMO_CHECK(pieces >= 1 && s.chunks <= plan::kMaxChunks / pieces,
               "in_pieces: chunks out of range");
  if (pieces == 1) return s;
  std::vector<Rank> all(static_cast<std::size_t>(s.ranks));
  std::iota(all.begin(), all.end(), 0);
  return on_group(s, all, s.ranks, {.offset = 0, .width = pieces, .chunks = s.chunks * pieces});
}

plan::Schedule without_repeats(plan::Schedule s) {
  const auto chunks = static_cast<std::size_t>(s.chunks);
  std::vector<bool> holds(static_cast<std::size_t>(s.ranks) * chunks);
  const auto place = [&](Rank r, plan::ChunkId c) {
    return static_cast<std::size_t>(r) * chunks + static_cast<std::size_t>(c);
  };
  for (plan::ChunkId c = 0; c < s.chunks; ++c) {
    const auto source = plan::only_source(s, c);
    STORMO_CHECK(source.has_value(), "without_repeats: the schedule does not only copy");
    holds[place(*source, c)] = true;
  }
  for (plan::Round& round : s.rounds) {
    std::erase_if(round, [&](const plan::Transfer& t) { return holds[place(t.to, t.chunk)]; });
    for (const plan::Transfer& t : round) holds[place(t.to, t.chunk)] = true;
  }
  std::erase_if(s.rounds, [](const plan::Round& round) { return round.empty(); });
  return s;
}

plan::Schedule with_goal(plan::Schedule s, std::string name, plan::Goal goal) {
  s.name = std::move(name);
  s.goal = goal;
  return s;
}

}  // namespace stormo::schedule
