// The MPI engine. This program is one rank: mpirun starts several, which run the same tests.
#include <stormo/mpi/join.h>

#include <cstdlib>
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
