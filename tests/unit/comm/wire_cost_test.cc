// The cost contract of every builder: what the transports count is what analysis::cost says.
#include <stormo/analysis/schedule/cost.h>
#include <stormo/plan/topology.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <vector>

#include "tests/unit/comm/ranks.h"

namespace stormo::comm {
namespace {

using plan::GoalKind;

/// Runs the builder once on this rank, on a buffer of `whole` elements.
void run_once(Communicator& c, const schedule::Builder& b, Rank root, int pieces,
              std::int64_t whole) {
  const OperationKind kind = kind_of(b.goal);
  const std::int64_t part = whole / c.size();
  const bool parts_in = kind == OperationKind::kAllGather || kind == OperationKind::kGather;
  const bool parts_out = kind == OperationKind::kReduceScatter || kind == OperationKind::kScatter;
  std::vector<std::int32_t> in(static_cast<std::size_t>(parts_in ? part : whole), 1);
  std::vector<std::int32_t> out(static_cast<std::size_t>(parts_out ? part : whole), 0);
  const bool has_out = kind != OperationKind::kGather || c.rank() == root;
  const bool has_in = kind != OperationKind::kScatter || c.rank() == root;
  const Buffer from = has_in ? in : Buffer{nullptr, 0, DType::kInt32};
  const Buffer to = in_place(kind) ? from : has_out ? out : Buffer{nullptr, 0, DType::kInt32};
  Request r{.kind = kind, .in = {&from, 1}, .out = {&to, 1}, .root = root};
  r.algorithm = b.name;
  r.pieces = pieces;
  EXPECT_OK(c.run(r, Deadline::after(std::chrono::seconds(20))));
}

TEST(WireCost, IsWhatTheTransportsCount) {
  for (const std::vector<int>& hosts :
       {std::vector<int>{1, 1, 1}, {1, 1, 1, 1}, {2, 2}, {1, 2}, {3, 1, 2}}) {
    const int n = std::accumulate(hosts.begin(), hosts.end(), 0);
    const plan::Topology topology{.host_sizes = hosts, .intra = {}, .inter = {}};
    std::mutex mutex;
    std::vector<std::uint64_t> sent(static_cast<std::size_t>(n));
    for (const schedule::Builder& b : schedule::builders()) {
      if (b.takes.even_hosts && !std::ranges::all_of(hosts, [&](int m) { return m == hosts[0]; })) {
        continue;
      }
      const int pieces = b.takes.pieces ? 3 : 1;
      const Rank root = b.takes.root ? n - 1 : 0;
      const auto s = b.build(schedule::ScheduleShape{n, hosts, root, pieces});
      ASSERT_TRUE(s.ok()) << s.status().to_string();
      const bool pairs = b.goal == GoalKind::kAllToAll;
      const std::int64_t count = std::int64_t{s->chunks} * n * 2;  // no chunk is empty or ragged
      const std::int64_t whole = pairs ? count / n : count;
      on_hosts(hosts, [&](Communicator& c) {
        const std::uint64_t before = c.bytes_sent();
        run_once(c, b, root, pieces, whole);
        const std::lock_guard lock(mutex);
        sent[static_cast<std::size_t>(c.rank())] = c.bytes_sent() - before;
      });
      const analysis::InterHostCost cost =
          analysis::inter_host_cost(*s, topology, count, sizeof(std::int32_t));
      EXPECT_EQ(std::accumulate(sent.begin(), sent.end(), std::uint64_t{0}),
                static_cast<std::uint64_t>(cost.total_bytes))
          << b.name << " on " << hosts.size() << " hosts";
      EXPECT_EQ(*std::ranges::max_element(sent),
                static_cast<std::uint64_t>(cost.max_rank_bytes_sent))
          << b.name << " on " << hosts.size() << " hosts";
    }
  }
}

}  // namespace
}  // namespace stormo::comm
