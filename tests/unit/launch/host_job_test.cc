#include <stormo/launch/messages/host_job.h>

#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stormo/launch/environment.h>

namespace stormo::launch {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

const transport::Secret& example_secret() {
  static const transport::Secret secret = transport::Secret::random();
  return secret;
}

HostJob example() {
  HostJob job;
  job.forks = true;
  job.program = {"./train", "", "a b", std::string("\xff\xc3\x28\x80 bytes"), "Größe"};
  job.directory = "/work";
  job.environment = {"PATH=/bin", "ODD=\x80\xff", "EMPTY="};
  job.host = "b";
  job.cross_rank = 1;
  job.cross_size = 2;
  job.size = 5;
  job.first_rank = 2;
  job.local_size = 3;
  job.name = "0123456789abcdef";
  job.register_address = "quorum://10.0.0.1:4001";
  job.acceptor = 1;
  job.acceptors = 3;
  job.store.text = "tcp:10.0.0.1:4000";
  job.secret = example_secret();
  job.interface = "eth0";
  job.ports = {5000, 5009};
  job.heartbeat_timeout = std::chrono::milliseconds(1500);
  job.bind = BindPolicy::kNuma;
  return job;
}

TEST(HostJob, SurvivesItsJourney) {
  const HostJob job = example();
  const std::string bytes = encode(job);
  const auto back = decode_host_job(bytes);
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(encode(*back), bytes);
  EXPECT_EQ(back->program, job.program);
  EXPECT_EQ(back->forks, job.forks);
  EXPECT_EQ(back->environment, job.environment);
  EXPECT_EQ(back->secret.bytes(), job.secret.bytes());
  EXPECT_EQ(back->first_rank, 2);
  EXPECT_EQ(back->name, job.name);
  EXPECT_EQ(back->register_address, job.register_address);
  EXPECT_EQ(back->ports, job.ports);
  EXPECT_EQ(back->acceptor, 1);
  EXPECT_EQ(back->acceptors, 3);
  EXPECT_EQ(back->bind, BindPolicy::kNuma);
}

TEST(HostJob, RefusesAnythingElse) {
  for (const char* bad : {"", "{}", "nonsense", "\1\0\0\0"})
    EXPECT_FALSE(decode_host_job(bad).ok()) << bad;
  const std::vector<std::function<void(HostJob&)>> mistakes = {
      [](HostJob& job) { job.first_rank = 3; },
      [](HostJob& job) { job.first_rank = -1; },
      [](HostJob& job) { job.local_size = 2'000'000'000; },
      [](HostJob& job) { job.cross_rank = 2; },
      [](HostJob& job) { job.program = {}; },
      [](HostJob& job) { job.acceptors = 0; },
      [](HostJob& job) {
        job.register_address = {};
        job.acceptor = -1;
        job.acceptors = 0;
      },
      [](HostJob& job) { job.acceptor = 3; },
      [](HostJob& job) { job.acceptor = -2; },
      [](HostJob& job) { job.bind = static_cast<BindPolicy>(9); }};
  for (const auto& make_mistake : mistakes) {
    HostJob job = example();
    make_mistake(job);
    EXPECT_FALSE(decode_host_job(encode(job)).ok());
  }
  const std::string good = encode(example());
  std::string bad_secret = good;
  bad_secret[bad_secret.find(example_secret().to_hex())] = 'x';
  EXPECT_FALSE(decode_host_job(bad_secret).ok());
  // Every truncation ends in an error, none in a crash.
  for (std::size_t n = 0; n < good.size(); n += 7)
    EXPECT_FALSE(decode_host_job(good.substr(0, n)).ok());
}

TEST(HostJob, AnotherVersionIsRefusedWithTheRemedy) {
  std::string bytes = encode(example());
  bytes.insert(4, "9");  // after the length
  ++bytes[0];
  EXPECT_THAT(decode_host_job(bytes).status().message(), HasSubstr("same version on all hosts"));
}

TEST(RankEnvironment, IsWhatReadEnvironmentReads) {
  HostJob job = example();
  job.store.text = "unix:x";
  job.secret = {};
  const Cpus cpus{{{0}, {1}, {2}, {3}, {4}, {5}}, {{0, 1, 2, 3, 4, 5}}, 0, 6};
  const std::vector<std::string> list = rank_environment(job, 1, cpus, -1);
  const auto r = read_environment([&](std::string_view name) -> std::optional<std::string> {
    const std::string_view value = value_of(list, name);
    if (value.empty()) return std::nullopt;
    return std::string(value);
  });
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  EXPECT_EQ(r->rank, 3);
  EXPECT_EQ(r->size, 5);
  EXPECT_EQ(r->local_rank, 1);
  EXPECT_EQ(r->local_size, 3);
  EXPECT_EQ(r->cross_rank, 1);
  EXPECT_EQ(r->host, "b");
  EXPECT_EQ(r->ports, job.ports);
  EXPECT_EQ(r->heartbeat_timeout, job.heartbeat_timeout);
  EXPECT_EQ(value_of(list, "STORMO_THREADS"), "2");
  EXPECT_EQ(value_of(list, "OMP_NUM_THREADS"), "2");
  EXPECT_EQ(value_of(list, "GOMP_SPINCOUNT"), "30000");
}

TEST(RankEnvironment, OfAnElasticJobSaysWhichStartItIs) {
  const Cpus one{{{0}}, {{0}}, 0, 1};
  HostJob job = example();
  auto list = rank_environment(job, 0, one, -1, 3);
  EXPECT_EQ(value_of(list, "STORMO_JOB"), job.name);
  EXPECT_EQ(value_of(list, "STORMO_REGISTER"), job.register_address);
  EXPECT_EQ(value_of(list, "STORMO_INCARNATION"), "3");
  for (const std::string& e : without_placement(list)) {
    EXPECT_THAT(e, Not(HasSubstr("STORMO_JOB="))) << "it would reach an inner job";
  }
  job.name = job.register_address = {};
  list = rank_environment(job, 0, one, -1);
  for (const char* name : {"STORMO_JOB", "STORMO_REGISTER", "STORMO_INCARNATION"}) {
    EXPECT_EQ(value_of(list, name), "") << name;
  }
}

TEST(RankEnvironment, KeepsTheUsersThreads) {
  HostJob job = example();
  job.environment = {"OMP_NUM_THREADS=7", "STORMO_THREADS=5"};
  const auto list = rank_environment(job, 0, Cpus{{{0}}, {{0}}, 0, 1}, -1);
  EXPECT_EQ(value_of(list, "OMP_NUM_THREADS"), "7");
  EXPECT_EQ(value_of(list, "STORMO_THREADS"), "5");
}

TEST(RankEnvironment, OneNumberOfThreadsCountsForBoth) {
  const Cpus cpus{{{0}, {1}, {2}, {3}}, {{0, 1, 2, 3}}, 0, 4};
  for (const char* given : {"OMP_NUM_THREADS=3", "STORMO_THREADS=3"}) {
    HostJob job = example();
    job.environment = {given};
    const auto list = rank_environment(job, 0, cpus, -1);
    EXPECT_EQ(value_of(list, "STORMO_THREADS"), "3") << given;
    EXPECT_EQ(value_of(list, "OMP_NUM_THREADS"), "3") << given;
  }
}

TEST(GivenThreads, AreCheckedBeforeARankStarts) {
  EXPECT_EQ(*given_threads({}), 0);
  for (const char* wrong : {"STORMO_THREADS=0", "STORMO_THREADS=two", "STORMO_THREADS=1025"}) {
    EXPECT_EQ(given_threads({wrong}).status().code(), Code::kInvalidArgument) << wrong;
  }
}

TEST(RankEnvironment, NeverHoldsTheSecret) {
  const HostJob job = example();
  for (const std::string& e : rank_environment(job, 0, Cpus{{{0}}, {{0}}, 0, 1}, 9))
    EXPECT_THAT(e, Not(HasSubstr(job.secret.to_hex())));
}

TEST(LoadsProgramOnce, SeveralRanksOfAProgramThatForksUnlessThreadsAreBoundAtLoading) {
  HostJob job;
  job.forks = true;
  job.local_size = 2;
  EXPECT_TRUE(loads_program_once(job));
  job.environment = {"OMP_PROC_BIND=", "OMP_NUM_THREADS=2"};
  EXPECT_TRUE(loads_program_once(job));
  for (const char* set :
       {"OMP_PROC_BIND=true", "OMP_PLACES=cores", "GOMP_CPU_AFFINITY=0", "KMP_AFFINITY=compact"}) {
    job.environment = {set};
    EXPECT_FALSE(loads_program_once(job)) << set;
  }
  job.environment = {};
  job.local_size = 1;
  EXPECT_FALSE(loads_program_once(job));
  job.local_size = 2;
  job.forks = false;
  EXPECT_FALSE(loads_program_once(job)) << "a program of a user";
}

TEST(WithoutPlacement, DropsOuterLaunchers) {
  EXPECT_THAT(
      without_placement({"PATH=/bin", "RANK=1", "SLURM_JOB_ID=2", "STORMO_RANK=0", "X=RANK"}),
      ElementsAre("PATH=/bin", "X=RANK"));
}

TEST(Portable, LeavesTheLoginAtHome) {
  EXPECT_THAT(
      portable({"PATH=/bin", "HOME=/root", "SSH_AUTH_SOCK=/x", "XDG_RUNTIME_DIR=/y", "A=1"}),
      ElementsAre("PATH=/bin", "A=1"));
}

}  // namespace
}  // namespace stormo::launch
