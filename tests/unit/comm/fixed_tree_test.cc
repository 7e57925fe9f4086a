// Sums of shards have the same bits for any number of ranks.
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <stormo/plan/logical_shards.h>

#include "tests/unit/comm/ranks.h"

namespace stormo::comm {
namespace {

using Values = std::vector<float>;

/// Of shard `s`: numbers of so different sizes that each order of additions rounds differently.
Values terms_of(int s, std::size_t count) {
  Values out(count);
  std::uint32_t random = 12345u + static_cast<std::uint32_t>(s) * 7919u;
  for (float& x : out) {
    random = random * 1664525u + 1013904223u;
    x = static_cast<float>(random >> 8) * (random % 3 == 0 ? 1e-3f : 1.f);
    if (random % 2 == 0) x = -x;
  }
  return out;
}

Values sum_over(const plan::ShardRange& leaves, std::size_t count) {
  if (leaves.size() == 1) return terms_of(leaves.first, count);
  const int middle = leaves.first + plan::left_of(leaves.size());
  Values sum = sum_over({leaves.first, middle}, count);
  const Values right = sum_over({middle, leaves.end}, count);
  for (std::size_t i = 0; i < count; ++i) sum[i] += right[i];
  return sum;
}

bool has_bits_of(const Values& a, const Values& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// What the ranks get who each have the sum of their shards.
std::vector<Values> sums_by(const std::string& algorithm, const std::vector<int>& hosts, int shards,
                            std::size_t count, bool in_arena) {
  const int n = std::accumulate(hosts.begin(), hosts.end(), 0);
  std::vector<Values> out(static_cast<std::size_t>(n));
  on_hosts(hosts, [&](Communicator& c) {
    const plan::ShardRange own = plan::shards_of(shards, c.size(), c.rank());
    Memory<float> x(c, sum_over(own, count), in_arena);
    const Buffer buffer = x.buffer();
    Request r{.kind = OperationKind::kAllReduce, .in = {&buffer, 1}, .out = {&buffer, 1}};
    r.algorithm = algorithm;
    EXPECT_OK(c.run(r, Deadline::never()));
    out[static_cast<std::size_t>(c.rank())] = x.values();
  });
  return out;
}

TEST(FixedTree, RanksOfAnyHostsGetTheSameBits) {
  for (const int shards : {4, 6, 8}) {
    for (const std::size_t count : {1, 5, 20011}) {
      const Values expected = sum_over({0, shards}, count);
      for (const std::vector<int>& hosts :
           std::vector<std::vector<int>>{{1}, {2}, {3}, {4}, {1, 1}, {2, 1}, {2, 2}, {1, 1, 2}}) {
        for (const bool in_arena : {false, true}) {
          for (const Values& got :
               sums_by(plan::kFixedTreeAllReduce, hosts, shards, count, in_arena)) {
            EXPECT_TRUE(has_bits_of(got, expected))
                << shards << " shards, " << count << " elements, " << hosts.size() << " hosts";
          }
        }
      }
    }
  }
}

// The order of ranks, and that of a ring, give other bits: the test above would find them.
TEST(FixedTree, OtherOrdersGiveOtherBits) {
  const Values expected = sum_over({0, 8}, 20011);
  for (const char* other : {"direct_all_reduce", "ring_all_reduce", "star_all_reduce"}) {
    EXPECT_FALSE(has_bits_of(sums_by(other, {4}, 8, 20011, true)[0], expected)) << other;
  }
}

}  // namespace
}  // namespace stormo::comm
