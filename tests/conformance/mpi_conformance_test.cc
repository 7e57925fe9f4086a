// The MPI engine. This program is one rank: mpirun starts several, which run the same tests.
#include <stormo/mpi/join.h>

#include <array>
#include <cstdlib>
#include <numeric>
#include <stdexcept>
#include <string_view>

#include "tests/conformance/communicator_conformance.h"

namespace stormo::comm {
namespace {

RanksFactory world(const std::string& name, const mpi::Options& options) {
  return {name, [options](const Body& body, bool finalize) {
            auto joined = mpi::join_mpi(options);
            ASSERT_TRUE(joined.ok()) << joined.status().to_string();
            body(**joined);
            if (finalize) EXPECT_OK((*joined)->finalize(Deadline::after(std::chrono::seconds(20))));
          }};
}

INSTANTIATE_TEST_SUITE_P(Mpi, CommunicatorConformance,
                         ::testing::Values(world("compared", {}),
                                           world("trusted", {.compare_calls = false}),
                                           world("in_pieces", {.bytes_per_call = 4096})),
                         ranks_name);
INSTANTIATE_TEST_SUITE_P(Mpi, CommunicatorFailure, ::testing::Values(world("compared", {})),
                         ranks_name);
INSTANTIATE_TEST_SUITE_P(Mpi, CommunicatorSubgroups, ::testing::Values(world("compared", {})),
                         ranks_name);

// Where no rank reaches rank 0 by sockets, MPI still does.
TEST(MpiEngine, WithoutAPlaceToMeetOnlyGroupsByTheirMembersAreRefused) {
  auto joined = mpi::join_mpi({.interface = "none0"});
  ASSERT_TRUE(joined.ok()) << joined.status().to_string();
  Communicator& c = **joined;
  const Deadline by = Deadline::after(std::chrono::seconds(20));
  std::vector<Rank> all(static_cast<std::size_t>(c.size()));
  std::iota(all.begin(), all.end(), 0);
  if (c.size() > 1) {
    const Status refused = c.group_of(all, "all", by).status();
    EXPECT_EQ(refused.code(), Code::kIo);
    EXPECT_NE(refused.message().find("none0"), std::string::npos) << refused.to_string();
    EXPECT_NE(refused.message().find("set STORMO_INTERFACE"), std::string::npos);
  }
  const auto alone = c.group_of(std::vector<Rank>{c.rank()}, "alone", by);
  EXPECT_TRUE(alone.ok()) << alone.status().to_string();
  const auto group = c.subgroup(all, by);
  ASSERT_TRUE(group.ok()) << group.status().to_string();
  std::int64_t x = 1;
  EXPECT_OK((*group)->all_reduce(std::span(&x, 1), ReduceOp::kSum, by));
  EXPECT_EQ(x, c.size());
  EXPECT_OK((*group)->finalize(by));
  EXPECT_OK(c.finalize(by));
}

TEST(MpiEngine, AFinalizedGroupMakesNoGroups) {
  auto joined = mpi::join_mpi();
  ASSERT_TRUE(joined.ok()) << joined.status().to_string();
  const Deadline by = Deadline::after(std::chrono::seconds(20));
  EXPECT_OK((*joined)->finalize(by));
  const Status s = (*joined)->group_of(std::vector<Rank>{0}, "late", by).status();
  EXPECT_EQ(s.code(), Code::kInvalidArgument) << s.to_string();
}

TEST(MpiEngine, CountsThatDoNotFitTogetherRaiseOnEveryRank) {
  auto joined = mpi::join_mpi();
  ASSERT_TRUE(joined.ok()) << joined.status().to_string();
  Communicator& c = **joined;
  std::vector<std::int64_t> counts(static_cast<std::size_t>(c.size()), 2);
  std::vector<float> in(2 * counts.size());
  std::vector<float> out(in.size() + 1);
  auto expected = counts;
  if (c.rank() == 0) expected.back() = 3;
  const std::size_t n = c.rank() == 0 ? out.size() : in.size();
  const Status s = c.all_to_all(in, counts, std::span(out).first(n), expected);
  EXPECT_EQ(s.code(), Code::kMismatch) << s.to_string();
  const char* says = c.rank() == 0 ? "to rank 0, which expects 3" : "counts that other ranks gave";
  EXPECT_NE(s.message().find(says), std::string::npos) << s.to_string();
}

TEST(MpiEngine, AReductionThatThrowsFailsEveryRank) {
  auto joined = mpi::join_mpi();
  ASSERT_TRUE(joined.ok()) << joined.status().to_string();
  Communicator& c = **joined;
  if (c.size() == 1) return;  // nothing is combined
  auto careful = std::make_shared<UserReduction>();
  careful->name = "sum of the careful";
  careful->combine = [](const void*, void*, std::int64_t) { throw std::domain_error("no number"); };
  std::vector<float> x(3, 1);
  const Deadline by = Deadline::after(std::chrono::seconds(20));
  const Status s = c.all_reduce(x, Reduction(careful), by);
  EXPECT_EQ(s.code(), Code::kException) << s.to_string();
  // some ranks combine, which ones is MPI's choice
  const bool says = s.message().find("std::domain_error: no number") != std::string::npos ||
                    s.message().find("the reduction has thrown on rank") != std::string::npos;
  EXPECT_TRUE(says) << s.to_string();
  EXPECT_EQ(c.barrier(by).code(), Code::kException);
}

TEST(MpiEngine, RanksShareNoMemory) {
  auto joined = mpi::join_mpi();
  ASSERT_TRUE(joined.ok()) << joined.status().to_string();
  for (int peer = 0; peer < (*joined)->local_size(); ++peer) {
    EXPECT_EQ((*joined)->peer_address(peer, 0), nullptr);
  }
}

TEST(MpiEngine, WhatNobodyReceivesDoesNotHoldUpTheEnd) {
  auto joined = mpi::join_mpi();
  ASSERT_TRUE(joined.ok()) << joined.status().to_string();
  Communicator& c = **joined;
  if (c.size() == 1) return;
  const Rank next = (c.rank() + 1) % c.size(), previous = (c.rank() + c.size() - 1) % c.size();
  std::vector<float> in(3), out(4096, 1), more(100000, 1);
  Work never_sent = c.recv_async(in, previous, 1);
  EXPECT_OK(c.send(out, next, 2));
  Work never_received = c.send_async(more, next, 3);
  EXPECT_OK(c.finalize(Deadline::after(std::chrono::seconds(10))));
  EXPECT_EQ(never_sent.wait().code(), Code::kCancelled);
  EXPECT_EQ(never_received.wait().code(), Code::kCancelled);
  EXPECT_EQ(c.send(out, next, 2).code(), Code::kInvalidArgument);
}

/// Pauses are longer the longer a rank waits; those of a receive that is pending for long are not
/// those of a call. On a busy machine it takes some attempts until nothing else delays a message.
TEST(MpiEngine, ALongWaitDoesNotMakeOthersLonger) {
  auto joined = mpi::join_mpi();
  ASSERT_TRUE(joined.ok()) << joined.status().to_string();
  Communicator& c = **joined;
  if (c.size() == 1) return;
  const Rank peer = c.rank() == 0 ? 1 : 0;
  constexpr double kShorter = 2;  // in ms, than one of its pauses
  float x = 1, y = 0;
  std::array<double, 2> best{100, 100};  // without a receive that is pending, and with one
  for (int i = 0; i < 60 && best[1] > best[0] + kShorter; ++i) {
    Work pending;
    if (c.rank() < 2) pending = c.recv_async(std::span(&y, 1), peer, 2);
    if (i % 2 == 0 && c.rank() < 2) {  // it is over at once
      EXPECT_OK(c.send(std::span(&x, 1), peer, 2));
      EXPECT_OK(pending.wait());
    }
    const Deadline its_pauses_are_long = Deadline::after(std::chrono::milliseconds(50));
    while (!its_pauses_are_long.expired()) std::this_thread::yield();
    EXPECT_OK(c.barrier());
    const TimePoint begin = std::chrono::steady_clock::now();
    if (c.rank() == 0) EXPECT_OK(c.send(std::span(&x, 1), 1, 1));
    if (c.rank() < 2) EXPECT_OK(c.recv(std::span(&x, 1), peer, 1));
    if (c.rank() == 1) EXPECT_OK(c.send(std::span(&x, 1), 0, 1));
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    double& of_this = best[static_cast<std::size_t>(i % 2)];
    of_this = std::min(of_this, took.count());
    EXPECT_OK(c.broadcast(best, 0));
    if (i % 2 == 0 || c.rank() >= 2) continue;
    EXPECT_OK(c.send(std::span(&x, 1), peer, 2));
    EXPECT_OK(pending.wait());
  }
  EXPECT_OK(c.finalize(Deadline::after(std::chrono::seconds(10))));
  EXPECT_LT(best[1], best[0] + kShorter);
}

/// Of all ranks but the first only failures are shown.
class OnlyFailures : public ::testing::EmptyTestEventListener {
  void OnTestPartResult(const ::testing::TestPartResult& part) override {
    if (part.failed()) {
      std::fprintf(stderr, "%s:%d: %s\n", part.file_name(), part.line_number(), part.message());
    }
  }
};

bool is_first_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK"}) {
    if (const char* rank = std::getenv(name)) return std::string_view(rank) == "0";
  }
  return true;
}

}  // namespace
}  // namespace stormo::comm

int main(int argc, char** argv) {
  const bool first = stormo::comm::is_first_rank();
  if (!first) GTEST_FLAG_SET(output, "");  // one report of results is enough
  ::testing::InitGoogleTest(&argc, argv);
  if (!first) {
    auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new stormo::comm::OnlyFailures);
  }
  return RUN_ALL_TESTS();
}
