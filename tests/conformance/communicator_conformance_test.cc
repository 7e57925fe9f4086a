// The engines whose ranks can be threads: shared memory over one mapping and over mappings of each
// rank's own, as processes have; TCP; both.
#include "tests/conformance/communicator_conformance.h"

#include <stormo/comm/group/memory_map.h>
#include <stormo/transport/shm/host_exchange.h>

#include "tests/conformance/communicator_shared_memory.h"
#include "tests/conformance/job_ranks.h"
#include "tests/unit/comm/joined_ranks.h"

namespace stormo::comm {
namespace {

RanksFactory hosts(const std::string& name, const std::vector<int>& ranks_per_host) {
  return {name, [=](const Body& body, bool finalize) { on_hosts(ranks_per_host, body, finalize); }};
}

/// As a program makes them.
RanksFactory inproc(const std::string& name, int n) {
  return {name, [n](const Body& body, bool finalize) {
            auto group = make_inproc_group(n);
            ASSERT_TRUE(group.ok()) << group.status().to_string();
            on_group(std::move(*group), body, finalize);
          }};
}

/// With a Store, as jobs have.
RanksFactory job(const std::string& name, const std::vector<int>& ranks_per_host) {
  return {name, [=](const Body& body, bool finalize) {
            on_group(make_job(ranks_per_host), body, finalize);
          }};
}

/// As processes do, through the Store.
RanksFactory joined(const std::string& name, const std::vector<int>& ranks_per_host) {
  return {name, [=](const Body& body, bool finalize) {
            on_group(JoinedRanks(ranks_per_host).take(), body, finalize);
          }};
}

/// Ranks that met through a HostListener.
RanksFactory mappings(const std::string& name, int n) {
  return {name, [n](const Body& body, bool finalize) {
            auto listener = transport::HostListener::open();
            ASSERT_TRUE(listener.ok()) << listener.status().to_string();
            const auto health = std::make_shared<transport::Health>();
            std::vector<std::unique_ptr<transport::Arena>> arenas(static_cast<std::size_t>(n));
            std::vector<std::unique_ptr<Communicator>> group(static_cast<std::size_t>(n));
            std::vector<std::thread> threads;
            for (int r = 0; r < n; ++r) {
              threads.emplace_back([&, r] {
                auto arena = transport::Arena::create({.capacity_bytes = 64 << 20});
                ASSERT_TRUE(arena.ok()) << arena.status().to_string();
                const Deadline by = Deadline::after(std::chrono::seconds(20));
                auto host = r == 0 ? (*listener)->host(n, **arena, by)
                                   : transport::join_host((*listener)->ticket(), r, n, **arena, by);
                ASSERT_TRUE(host.ok()) << host.status().to_string();
                Group::Parts parts;
                parts.rank = r;
                parts.ranks_per_host = {n};
                parts.health = health;
                parts.connections.host_group =
                    std::make_unique<transport::HostGroup>(std::move(*host), health);
                group[static_cast<std::size_t>(r)] = std::make_unique<Group>(std::move(parts));
                arenas[static_cast<std::size_t>(r)] = std::move(*arena);
              });
            }
            for (std::thread& t : threads) t.join();
            on_group(std::move(group), body, finalize);
          }};
}

TEST(PrivateBuffers, OfSomeSizeAreUsedWhereTheyLie) {
  const auto body = [](Communicator& c) {
    std::vector<float> x(2 << 20, 1);
    // all reach each other after the first exchange, and all know it after the second
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(c.barrier().ok());
    EXPECT_TRUE(c.all_reduce(x, ReduceOp::kSum).ok());
    EXPECT_EQ(x.back(), 3.0F);
    EXPECT_LT(c.arena().stats().in_use_bytes, x.size());  // no copy
  };
  mappings("", 3).run(body, true);
}

// They are fetched in blocks whose size depends on the number of peers. Of this size, they are
// copied the first time, in pieces if it is more than one, and fetched the second (CopyOrFetch).
TEST(PrivateBuffers, AreReducedWholeWhateverTheNumberOfPeers) {
  constexpr std::int64_t kPart = 100'003;  // elements: several blocks, and an odd end
  for (int n = 2; n <= 8; n += kSanitized ? 3 : 1) {
    const auto body = [n](Communicator& c) {
      for (int i = 0; i < 2; ++i) EXPECT_TRUE(c.barrier().ok());
      for (const char* way : {"copied", "fetched"}) {
        std::vector<float> in(static_cast<std::size_t>(n * kPart)), out(kPart);
        for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i % 1009);
        std::vector<float> sum = in;
        const Buffer whole = in, part = out;
        EXPECT_TRUE(c.all_reduce(sum, ReduceOp::kSum).ok());
        EXPECT_TRUE(c.reduce_scatter(whole, part, ReduceOp::kSum).ok());
        std::int64_t wrong = 0;
        for (std::size_t i = 0; i < sum.size(); ++i)
          wrong += sum[i] != static_cast<float>(n) * static_cast<float>(i % 1009);
        const std::size_t begin = static_cast<std::size_t>(c.rank() * kPart);
        for (std::size_t i = 0; i < out.size(); ++i)
          wrong += out[i] != static_cast<float>(n) * static_cast<float>((begin + i) % 1009);
        EXPECT_EQ(wrong, 0) << "rank " << c.rank() << " of " << n << ", " << way;
      }
    };
    mappings("", n).run(body, true);
  }
}

/// Counts the operations that a group really ran.
struct Operations : Sink {
  int num = 0;
  void record(const Event& event) override { num += event.lane == Lane::kCommunication ? 1 : 0; }
};

// Large ones go through the Arena in pieces, or are fetched: tried in turns at first. Additions
// keep their order, so that nobody sees which way was taken.
TEST(PrivateBuffers, InPiecesHaveTheSumsOfTheArena) {
  constexpr std::size_t kCount = 5 * MemoryMap::kPiece / sizeof(float) / 2 + 333;
  const auto body = [](Communicator& c) {
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(c.barrier().ok());
    std::vector<float> terms(kCount);
    for (std::size_t i = 0; i < kCount; ++i)
      terms[i] = std::sin(static_cast<float>(i * static_cast<std::size_t>(c.rank() + 1)));
    auto* const shared = static_cast<float*>(c.arena().allocate(kCount * sizeof(float)));
    Operations operations;
    c.set_sink(&operations);
    int in_pieces = 0;
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kWeightedAverage}) {
      std::vector<std::vector<float>> sums;
      for (int round = 0; round < 5; ++round) {
        // of all ranks in the Arena, of none, and of some: whoever has a private one is followed
        const bool in_arena = round == 0 || (round == 4 && c.rank() == 0);
        std::vector<float> own = terms;
        std::copy(terms.begin(), terms.end(), shared);
        const Buffer buffer = in_arena ? std::span(shared, kCount) : std::span(own);
        const int before = operations.num;
        EXPECT_OK(c.all_reduce({&buffer, 1}, op, 1.0 + c.rank()));
        in_pieces += operations.num - before == 3 ? 1 : 0;
        sums.push_back(in_arena ? std::vector<float>(shared, shared + kCount) : own);
        EXPECT_TRUE(sums.back() == sums.front()) << "round " << round;
      }
    }
    c.set_sink(nullptr);
    EXPECT_GT(in_pieces, 0);
    EXPECT_LT(in_pieces, 12) << "the first of each operation is in the Arena";
    c.arena().deallocate(shared);
  };
  for (const int n : kThreadSanitizer ? std::vector{4} : std::vector{2, 4, 5}) {
    mappings("", n).run(body, true);
  }
}

TEST(SharedMemory, SubgroupsHaveTheirOwnNumbering) {
  const auto body = [](Communicator& c) {
    const auto made =
        c.subgroup(std::vector<Rank>{1, 2}, Deadline::after(std::chrono::seconds(20)));
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    if (*made) exchange_through_arenas(**made);
  };
  inproc("", 3).run(body, true);
}

INSTANTIATE_TEST_SUITE_P(Inproc, CommunicatorConformance,
                         ::testing::Values(hosts("of1", {1}), hosts("of2", {2}), hosts("of3", {3}),
                                           hosts("of5", {5})),
                         ranks_name);
INSTANTIATE_TEST_SUITE_P(Shm, CommunicatorConformance, ::testing::Values(mappings("of3", 3)),
                         ranks_name);
INSTANTIATE_TEST_SUITE_P(Tcp, CommunicatorConformance,
                         ::testing::Values(hosts("of2", {1, 1}), hosts("of3", {1, 1, 1})),
                         ranks_name);
INSTANTIATE_TEST_SUITE_P(Mixed, CommunicatorConformance,
                         ::testing::Values(hosts("of2and1", {2, 1}), hosts("of1and2", {1, 2}),
                                           hosts("of2and2", {2, 2}),
                                           hosts("of2and1and2", {2, 1, 2})),
                         ranks_name);
INSTANTIATE_TEST_SUITE_P(FourHostsOfFour, CommunicatorConformance,
                         ::testing::Values(hosts("ranks", {4, 4, 4, 4})), ranks_name);
INSTANTIATE_TEST_SUITE_P(Inproc, CommunicatorSharedMemory,
                         ::testing::Values(hosts("of1", {1}), hosts("of3", {3})), ranks_name);
INSTANTIATE_TEST_SUITE_P(Shm, CommunicatorSharedMemory, ::testing::Values(mappings("of3", 3)),
                         ranks_name);
INSTANTIATE_TEST_SUITE_P(Mixed, CommunicatorSharedMemory,
                         ::testing::Values(hosts("of2and1and2", {2, 1, 2})), ranks_name);
INSTANTIATE_TEST_SUITE_P(Inproc, CommunicatorFailure,
                         ::testing::Values(hosts("of2", {2}), hosts("of3", {3})), ranks_name);
INSTANTIATE_TEST_SUITE_P(Inproc, CommunicatorSubgroups, ::testing::Values(inproc("of3", 3)),
                         ranks_name);
INSTANTIATE_TEST_SUITE_P(Joined, CommunicatorSubgroups,
                         ::testing::Values(joined("of4", {4}), joined("of2and2", {2, 2})),
                         ranks_name);
INSTANTIATE_TEST_SUITE_P(Shm, CommunicatorFailure, ::testing::Values(mappings("of3", 3)),
                         ranks_name);
INSTANTIATE_TEST_SUITE_P(Tcp, CommunicatorFailure,
                         ::testing::Values(job("of2", {1, 1}), job("of3", {1, 1, 1})), ranks_name);
INSTANTIATE_TEST_SUITE_P(Mixed, CommunicatorFailure,
                         ::testing::Values(job("of2and1", {2, 1}), job("of2and2", {2, 2})),
                         ranks_name);

}  // namespace
}  // namespace stormo::comm
