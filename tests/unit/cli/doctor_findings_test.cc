#include <cli/doctor/findings.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace stormo::cli {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// A host with nothing to complain about.
HostFacts good() {
  HostFacts f;
  f.host = "a";
  f.host_addresses = {"10.0.0.1"};
  f.cpus = {{{0}, {1}, {2}, {3}}, {{0, 1, 2, 3}}, 0, 4};
  f.load = 0.5;
  f.memory_bytes = f.memory_available_bytes = 64ull << 30;
  f.hugepages = "always";
  f.shared_hugepages = true;
  f.shm_bytes = 32ull << 30;
  f.limits = {{"nofile", 65536, 65536}, {"nproc", std::nullopt, std::nullopt}};
  f.interfaces = {{"lo", "127.0.0.1", true}, {"eth0", "10.0.0.1", false}};
  f.has_memfd = f.has_pidfd = true;
  return f;
}

void expect_one(const HostFacts& facts, const char* what, bool fatal = false) {
  const auto found = findings(facts);
  ASSERT_EQ(found.size(), 1u) << what;
  EXPECT_THAT(found[0].what, HasSubstr(what));
  EXPECT_EQ(found[0].fatal, fatal);
  EXPECT_THAT(found[0].why, Not(IsEmpty()));
  EXPECT_THAT(found[0].remedy, Not(IsEmpty()));
}

TEST(Findings, AGoodHostHasNone) { EXPECT_THAT(findings(good()), IsEmpty()); }

TEST(Findings, EachProblemIsFoundAlone) {
  HostFacts f = good();
  f.has_memfd = false;
  expect_one(f, "memfd", true);
  f = good();
  f.has_pidfd = false;
  expect_one(f, "pidfd", true);
  f = good();
  f.torch_problem = "stormo-train is missing";
  expect_one(f, "stormo-train is missing", true);
  f = good();
  f.cpus.quota = 1.5;
  expect_one(f, "1.5 of 4 cores");
  f = good();
  f.load = 9;
  expect_one(f, "load 9.0");
  f = good();
  f.slowdown.computing = 1.6;
  expect_one(f, "computing takes 1.6 times as long");
  f = good();
  f.slowdown.others = 1.8;
  expect_one(f, "other processes keep 1.8 cores busy");
  f = good();
  f.omp_num_threads = "1";
  expect_one(f, "OMP_NUM_THREADS=1");
  f = good();
  f.memory_limit_bytes = 100 << 20;
  expect_one(f, "100 MiB of memory");
  f = good();
  f.swap_used_bytes = 2ull << 30;
  expect_one(f, "swapped");
  f = good();
  f.hugepages = "madvise";
  expect_one(f, "transparent huge pages are 'madvise'");
  f = good();
  f.shared_hugepages = false;
  expect_one(f, "no huge pages for shared memory");
  f = good();
  f.shm_bytes = 64 << 20;
  expect_one(f, "/dev/shm holds 64 MiB");
  f = good();
  f.limits[0] = {"nofile", 1024, 2048};
  expect_one(f, "limit nofile is 1024");
  f = good();
  f.pids_limit = 100;
  expect_one(f, "100 processes");
  f = good();
  f.host_addresses = {"127.0.1.1"};
  expect_one(f, "resolves to 127.0.1.1");
  f = good();
  f.interfaces.pop_back();
  expect_one(f, "loopback");
}

TEST(Findings, TheRemedyForALimitStaysWithinTheHardOne) {
  HostFacts f = good();
  f.limits[0] = {"nofile", 1024, 2048};
  EXPECT_EQ(findings(f).at(0).remedy, "ulimit -S -n 2048");
}

}  // namespace
}  // namespace stormo::cli
