#include <stormo/launch/environment.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <map>

#include <stormo/launch/openmp_waits.h>
#include <stormo/launch/secret_file.h>

namespace stormo::launch {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using transport::Rendezvous;

using Variables = std::map<std::string, std::string, std::less<>>;

Result<Rendezvous> read(const Variables& variables) {
  return read_environment([&](std::string_view name) -> std::optional<std::string> {
    const auto it = variables.find(name);
    if (it == variables.end()) return std::nullopt;
    return it->second;
  });
}

Variables with(Variables base, const Variables& more) {
  for (const auto& [name, value] : more) base[name] = value;
  return base;
}

const Variables kStormo{{"STORMO_RANK", "3"},       {"STORMO_WORLD_SIZE", "4"},
                        {"STORMO_LOCAL_RANK", "1"}, {"STORMO_LOCAL_SIZE", "2"},
                        {"STORMO_CROSS_RANK", "1"}, {"STORMO_CROSS_SIZE", "2"},
                        {"STORMO_HOST", "b"},       {"STORMO_STORE", "unix:abc"}};

/// The number of a descriptor with a secret, which a reading takes and closes.
std::string secret_fd() {
  return std::to_string(::dup(make_secret_file(transport::Secret::random())->get()));
}

const Variables kTorchrun{{"RANK", "1"},
                          {"WORLD_SIZE", "2"},
                          {"LOCAL_RANK", "1"},
                          {"LOCAL_WORLD_SIZE", "2"},
                          {"GROUP_RANK", "0"},
                          {"MASTER_ADDR", "127.0.0.1"},
                          {"MASTER_PORT", "29500"},
                          {"TORCHELASTIC_RUN_ID", "j7"},
                          {"TORCHELASTIC_RESTART_COUNT", "2"}};
const Variables kSlurm{{"SLURM_STEP_ID", "0"},        {"SLURM_PROCID", "2"},
                       {"SLURM_STEP_NUM_TASKS", "3"}, {"SLURM_LOCALID", "0"},
                       {"SLURM_NODEID", "1"},         {"SLURM_STEP_NUM_NODES", "2"},
                       {"SLURM_JOB_ID", "77"},        {"SLURM_STEP_TASKS_PER_NODE", "2,1"},
                       {"SLURMD_NODENAME", "n1"}};
const Variables kOpenMpi{{"OMPI_COMM_WORLD_RANK", "1"},
                         {"OMPI_COMM_WORLD_SIZE", "2"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                         {"PMIX_NAMESPACE", "42.1"}};

TEST(ReadEnvironment, NothingSetIsAWorldOfOne) {
  const auto r = read({});
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(r->source, "none");
  EXPECT_EQ(r->size, 1);
  EXPECT_TRUE(r->store.empty());
  EXPECT_FALSE(r->host.empty());
}

TEST(ReadEnvironment, OwnLauncher) {
  const auto r = read(with(kStormo, {{"STORMO_SECRET_FD", secret_fd()},
                                     {"STORMO_INTERFACE", "eth1"},
                                     {"STORMO_SELECTION", "/etc/stormo.sel"},
                                     {"STORMO_CHECKSUM", "1"},
                                     {"STORMO_SOCKETS", "4"},
                                     {"STORMO_PORTS", "5000-5010"},
                                     {"STORMO_HEARTBEAT", "250ms"},
                                     {"STORMO_ON_STOPPED", "wait"},
                                     {"STORMO_JOIN_TIMEOUT", "2min"},
                                     {"STORMO_STALL_WARNING", "3s"},
                                     {"STORMO_STALL_TIMEOUT", "0s"},
                                     {"STORMO_FLIGHT_FILE", "run/flight.json"}}));
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  EXPECT_EQ(r->source, "stormo");
  EXPECT_EQ(r->rank, 3);
  EXPECT_EQ(r->size, 4);
  EXPECT_EQ(r->local_rank, 1);
  EXPECT_EQ(r->local_size, 2);
  EXPECT_EQ(r->cross_rank, 1);
  EXPECT_EQ(r->cross_size, 2);
  EXPECT_EQ(r->host, "b");
  EXPECT_EQ(r->store.text, "unix:abc");
  EXPECT_FALSE(r->serve_store);
  EXPECT_EQ(r->interface, "eth1");
  EXPECT_EQ(r->selection_file, "/etc/stormo.sel");
  EXPECT_TRUE(r->checksum);
  EXPECT_EQ(r->sockets, 4);
  EXPECT_EQ(r->ports, (transport::PortRange{5000, 5010}));
  EXPECT_EQ(r->stall_warning, std::chrono::seconds(3));
  EXPECT_EQ(r->stall_timeout, Duration::zero());
  EXPECT_EQ(r->flight_file, "run/flight.json");
  const auto plain = read(kStormo);
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->stall_timeout, std::chrono::seconds(60)) << "the default";
  EXPECT_EQ(r->heartbeat_timeout, std::chrono::milliseconds(250));
  EXPECT_EQ(r->on_stopped, transport::OnStopped::kWait);
  EXPECT_EQ(plain->on_stopped, transport::OnStopped::kEnd);
  EXPECT_EQ(r->join_timeout, std::chrono::minutes(2));
}

TEST(ReadEnvironment, ReadsTheSecretFromItsDescriptorAndClosesIt) {
  const auto secret = transport::Secret::random();
  auto file = make_secret_file(secret);
  ASSERT_TRUE(file.ok());
  const int fd = ::dup(file->get());
  const auto variables = with(
      kStormo, {{"STORMO_STORE", "tcp:10.0.0.1:4000"}, {"STORMO_SECRET_FD", std::to_string(fd)}});
  const auto r = read(variables);
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  EXPECT_EQ(r->secret.bytes(), secret.bytes());
  EXPECT_EQ(::close(fd), -1) << "must be closed already";
  EXPECT_FALSE(read(variables).ok());
}

/// A rank that only asks for its place leaves the secret to who joins: it can be read once.
TEST(ReadEnvironment, APlaceIsReadWithoutTheSecret) {
  for (const char* store : {"tcp:10.0.0.1:4000", "unix:abc"}) {
    const auto r = read(with(kStormo, {{"STORMO_STORE", store}}));
    ASSERT_TRUE(r.ok()) << r.status().to_string();
    EXPECT_TRUE(r->secret.empty());
    EXPECT_EQ(r->rank, 3);
  }
}

TEST(ReadEnvironment, ListsEverythingThatIsWrong) {
  const auto r = read(with(kStormo, {{"STORMO_RANK", "x"},
                                     {"STORMO_WORLD_SIZE", "0"},
                                     {"STORMO_PORTS", "9-1"},
                                     {"STORMO_CHECKSUM", "on"},
                                     {"STORMO_TLS", "on"},
                                     {"STORMO_HEARTBEAT", "soon"},
                                     {"STORMO_ON_STOPPED", "ask"},
                                     {"STORMO_STALL_TIMEOUT", "late"}}));
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(r.status().message(),
              AllOf(HasSubstr("STORMO_RANK='x'"), HasSubstr("STORMO_WORLD_SIZE='0'"),
                    HasSubstr("STORMO_PORTS"), HasSubstr("STORMO_CHECKSUM"),
                    HasSubstr("STORMO_TLS is 'on': use off, psk or always"),
                    HasSubstr("STORMO_HEARTBEAT"), HasSubstr("STORMO_STALL_TIMEOUT"),
                    HasSubstr("STORMO_ON_STOPPED is 'ask'"), HasSubstr("remedy")));
}

TEST(ReadEnvironment, RanksOutOfBounds) {
  for (const Variables& bad :
       {Variables{{"STORMO_RANK", "4"}}, Variables{{"STORMO_LOCAL_RANK", "2"}},
        Variables{{"STORMO_CROSS_RANK", "2"}}, Variables{{"STORMO_RANK", "-1"}},
        Variables{{"STORMO_WORLD_SIZE", "100000"}}, Variables{{"STORMO_LOCAL_SIZE", "5"}}})
    EXPECT_FALSE(read(with(kStormo, bad)).ok()) << bad.begin()->first;
}

TEST(ReadEnvironment, Torchrun) {
  const auto r = read(kTorchrun);
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  EXPECT_EQ(r->source, "torchrun");
  EXPECT_EQ(r->rank, 1);
  EXPECT_EQ(r->local_size, 2);
  EXPECT_EQ(r->cross_size, 1);
  EXPECT_FALSE(r->serve_store);
  EXPECT_TRUE(r->store.empty());
  EXPECT_TRUE(r->rendezvous_file.empty());
  EXPECT_THAT(r->host_rendezvous_name, StartsWith("torchrun-j7-29500-2-"));
  const auto zero = read(with(kTorchrun, {{"RANK", "0"}, {"LOCAL_RANK", "0"}}));
  ASSERT_TRUE(zero.ok());
  EXPECT_TRUE(zero->serve_store);
  EXPECT_EQ(zero->host_rendezvous_name, r->host_rendezvous_name)
      << "all ranks must meet at one name";
  const auto restarted = read(with(kTorchrun, {{"TORCHELASTIC_RESTART_COUNT", "3"}}));
  ASSERT_TRUE(restarted.ok());
  EXPECT_NE(restarted->host_rendezvous_name, r->host_rendezvous_name)
      << "a restarted job must not meet its predecessor";
}

TEST(ReadEnvironment, RanksOfOneHostMeetInAFolderOfTheirUser) {
  const auto r =
      read(with(kTorchrun, {{"XDG_RUNTIME_DIR", "/run/user/7"}, {"HOME", "/people/me"}}));
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  EXPECT_THAT(r->host_rendezvous_folders,
              ElementsAre("/run/user/7/stormo", "/tmp/stormo-" + std::to_string(::geteuid()),
                          StartsWith("/people/me/.stormo-run-")));
  const auto odd = read(with(kTorchrun, {{"TORCHELASTIC_RUN_ID", "../a/b c"}}));
  ASSERT_TRUE(odd.ok());
  EXPECT_THAT(odd->host_rendezvous_name, Not(HasSubstr("/")));
  const auto other = read(with(kTorchrun, {{"TORCHELASTIC_RUN_ID", "../a/b_c"}}));
  EXPECT_NE(odd->host_rendezvous_name, other->host_rendezvous_name);
}

TEST(ReadEnvironment, RankZeroOfSeveralHostsListensWhereOthersReachIt) {
  const Variables zero = with(kTorchrun, {{"WORLD_SIZE", "4"},
                                          {"RANK", "0"},
                                          {"LOCAL_RANK", "0"},
                                          {"GROUP_RANK", "0"},
                                          {"STORMO_RENDEZVOUS", "file:/shared/job7"}});
  const auto named = read(with(zero, {{"STORMO_INTERFACE", "lo"}}));
  ASSERT_TRUE(named.ok()) << named.status().to_string();
  EXPECT_EQ(named->interface, "lo");
  const auto found = read(zero);
  if (found.ok())
    EXPECT_FALSE(found->interface.empty());
  else
    EXPECT_THAT(found.status().message(), HasSubstr("STORMO_INTERFACE is not set"));
  const auto one_host = read(with(zero, {{"WORLD_SIZE", "2"}}));
  ASSERT_TRUE(one_host.ok()) << one_host.status().to_string();
  EXPECT_EQ(one_host->store.text, "unix:");
}

TEST(ReadEnvironment, ARankWithoutMasterIsNotTorchrun) {
  const auto r = read({{"RANK", "1"}, {"WORLD_SIZE", "2"}});
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(r->source, "none");
}

TEST(ReadEnvironment, TorchrunWithoutLocalRankSaysWhatIsMissing) {
  Variables v = kTorchrun;
  v.erase("LOCAL_RANK");
  v.erase("LOCAL_WORLD_SIZE");
  const auto r = read(v);
  ASSERT_FALSE(r.ok());
  EXPECT_THAT(r.status().message(),
              AllOf(HasSubstr("LOCAL_RANK is not set"), HasSubstr("LOCAL_WORLD_SIZE is not set")));
}

TEST(ReadEnvironment, SeveralHostsNeedARendezvousFile) {
  const Variables two_hosts =
      with(kTorchrun, {{"WORLD_SIZE", "4"}, {"RANK", "3"}, {"GROUP_RANK", "1"}});
  const auto refused = read(two_hosts);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("STORMO_RENDEZVOUS=file:PATH"));
  const auto r = read(with(two_hosts, {{"STORMO_RENDEZVOUS", "file:/shared/job7"}}));
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  EXPECT_EQ(r->rendezvous_file, "/shared/job7");
  EXPECT_TRUE(r->store.empty());
  EXPECT_EQ(r->cross_rank, 1);
  EXPECT_EQ(r->cross_size, 2);
  EXPECT_FALSE(read(with(two_hosts, {{"STORMO_RENDEZVOUS", "/shared/job7"}})).ok());
}

TEST(ReadSettings, AreWhatAPersonSaysWhateverTheLauncherSays) {
  const auto settings = [](const Variables& variables) {
    return read_settings([&](std::string_view name) -> std::optional<std::string> {
      const auto it = variables.find(name);
      return it == variables.end() ? std::nullopt : std::optional(it->second);
    });
  };
  const auto s = settings(with(kTorchrun, {{"RANK", "no number"},
                                           {"STORMO_RENDEZVOUS", "file:/shared/job7"},
                                           {"STORMO_TRUST_STORE", "1"},
                                           {"STORMO_INTERFACE", "eth7"},
                                           {"STORMO_JOIN_TIMEOUT", "3s"},
                                           {"XDG_RUNTIME_DIR", "/run/user/7"}}));
  ASSERT_TRUE(s.ok()) << s.status().to_string();
  EXPECT_EQ(s->rendezvous_file, "/shared/job7");
  EXPECT_TRUE(s->trust_store);
  EXPECT_EQ(s->interface, "eth7");
  EXPECT_EQ(s->join_timeout, std::chrono::seconds(3));
  EXPECT_EQ(s->host_rendezvous_folders.front(), "/run/user/7/stormo");
  EXPECT_NE(s->host, "");
  EXPECT_FALSE(settings({})->trust_store);
  const auto wrong = settings({{"STORMO_TRUST_STORE", "yes"}, {"STORMO_RENDEZVOUS", "/shared"}});
  EXPECT_THAT(wrong.status().message(), AllOf(HasSubstr("STORMO_TRUST_STORE is 'yes': use 0 or 1"),
                                              HasSubstr("must be file:PATH")));
}

TEST(ReadEnvironment, SlurmStepWithAnUnevenLastNode) {
  const auto r = read(with(kSlurm, {{"STORMO_RENDEZVOUS", "file:x"}}));
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  EXPECT_EQ(r->source, "slurm");
  EXPECT_EQ(r->rank, 2);
  EXPECT_EQ(r->size, 3);
  EXPECT_EQ(r->local_size, 1);
  EXPECT_EQ(r->cross_rank, 1);
  EXPECT_EQ(r->host, "n1");
}

TEST(ReadEnvironment, ABatchScriptIsNoSlurmStep) {
  const auto r = read({{"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}});
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(r->source, "none");
}

TEST(ReadEnvironment, OpenMpi) {
  const auto r = read(kOpenMpi);
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  EXPECT_EQ(r->source, "openmpi");
  EXPECT_EQ(r->rank, 1);
  EXPECT_THAT(r->host_rendezvous_name, HasSubstr("openmpi-42.1"));
  const auto scattered =
      read(with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}}));
  ASSERT_FALSE(scattered.ok());
  EXPECT_THAT(scattered.status().message(), HasSubstr("--map-by slot"));
}

TEST(ReadEnvironment, Mpich) {
  const Variables mpich{
      {"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
  const auto nowhere = read(mpich);
  ASSERT_FALSE(nowhere.ok());
  EXPECT_THAT(nowhere.status().message(), HasSubstr("STORMO_RENDEZVOUS=file:PATH"));
  const auto r = read(with(mpich, {{"STORMO_RENDEZVOUS", "file:x"}}));
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  EXPECT_EQ(r->source, "mpich");
  EXPECT_EQ(r->rank, 3);
  EXPECT_EQ(r->cross_rank, 1);
  EXPECT_EQ(r->cross_size, 2);
  const auto one_host = read(with(mpich, {{"MPI_LOCALNRANKS", "4"}, {"MPI_LOCALRANKID", "3"}}));
  ASSERT_TRUE(one_host.ok()) << one_host.status().to_string();
  EXPECT_THAT(one_host->host_rendezvous_name, StartsWith("mpich-"));
  EXPECT_EQ(read({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}})->source, "none") << "srun sets these, too";
}

Variables tf_config(const std::string& cluster, const std::string& type, int index) {
  return {{"TF_CONFIG", R"({"cluster": {)" + cluster + R"(}, "task": {"type": ")" + type +
                            R"(", "index": )" + std::to_string(index) + "}}"}};
}

TEST(ReadEnvironment, WorkersOfTfConfigFormAGroup) {
  const std::string cluster = R"("chief": ["a:1"], "worker": ["a:2", "a:3"])";
  const auto chief = read(tf_config(cluster, "chief", 0));
  const auto last = read(tf_config(cluster, "worker", 1));
  ASSERT_TRUE(chief.ok() && last.ok()) << chief.status().message() << last.status().message();
  EXPECT_EQ(chief->source, "tf_config");
  EXPECT_EQ(chief->rank, 0);
  EXPECT_TRUE(chief->serve_store);
  EXPECT_EQ(last->rank, 2);
  EXPECT_EQ(last->local_rank, 2);
  EXPECT_EQ(last->local_size, 3);
  EXPECT_EQ(last->size, 3);
  EXPECT_FALSE(last->serve_store);
  EXPECT_EQ(chief->host_rendezvous_name, last->host_rendezvous_name);
  EXPECT_NE(chief->host_rendezvous_name,
            read(tf_config(R"("chief": ["a:1"], "worker": ["a:2", "a:4"])", "chief", 0))
                ->host_rendezvous_name);
}

TEST(ReadEnvironment, WorkersOfTfConfigAreNumberedHostAfterHost) {
  Variables variables = tf_config(R"("worker": ["a:1", "b:1", "a:2", "b:2"])", "worker", 2);
  EXPECT_THAT(read(variables).status().message(), HasSubstr("STORMO_SECRET_FILE"));
  variables["STORMO_RENDEZVOUS"] = "file:/shared/x";
  const auto third = read(variables);
  ASSERT_TRUE(third.ok()) << third.status().message();
  EXPECT_EQ(third->rank, 1);
  EXPECT_EQ(third->local_rank, 1);
  EXPECT_EQ(third->cross_rank, 0);
  EXPECT_EQ(third->cross_size, 2);
  EXPECT_EQ(third->host, "a");
}

TEST(ReadEnvironment, TfConfigAlone) {
  EXPECT_EQ(read(tf_config(R"("chief": ["a:1"])", "chief", 0))->size, 1);
  EXPECT_EQ(read(tf_config(R"("chief": ["a:1"], "ps": ["b:2"])", "chief", 0))->source, "none")
      << "its processes form no group";
  EXPECT_EQ(read({{"TF_CONFIG", "{}"}})->source, "none");
  EXPECT_THAT(read(tf_config(R"("worker": ["a:1", "a:2"])", "worker", 2)).status().message(),
              HasSubstr("task.index"));
  EXPECT_EQ(read(with(tf_config(R"("worker": ["a:1", "a:2"])", "worker", 1), kStormo))->source,
            "stormo");
}

TEST(ReadEnvironment, TheInnerLauncherWins) {
  EXPECT_EQ(read(with(with(kTorchrun, kSlurm), kStormo))->source, "stormo");
  EXPECT_EQ(read(with(kTorchrun, kSlurm))->source, "torchrun");
  EXPECT_EQ(read(with(with(kOpenMpi, kSlurm), {{"STORMO_RENDEZVOUS", "file:x"}}))->source, "slurm");
}

TEST(ThreadsPerRank, ANumberWithinItsBoundsOrNothing) {
  const auto threads = [](std::string value) {
    return threads_per_rank(
        [&](std::string_view name) {
          return name == "STORMO_THREADS" ? std::optional(value) : std::nullopt;
        },
        8);
  };
  EXPECT_EQ(*threads_per_rank([](std::string_view) { return std::nullopt; }, 8), 0);
  EXPECT_EQ(*threads(""), 0);
  EXPECT_EQ(*threads("1"), 1);
  EXPECT_EQ(*threads("8"), 8);
  for (const char* bad : {"0", "9", "-1", "x", "2 "}) EXPECT_FALSE(threads(bad).ok()) << bad;
}

TEST(ThreadsPerRank, WhatIsSaidOfOpenMpCountsToo) {
  const auto threads = [](std::map<std::string, std::string, std::less<>> variables) {
    return *threads_per_rank(
        [&](std::string_view name) {
          const auto found = variables.find(name);
          return found == variables.end() ? std::nullopt : std::optional(found->second);
        },
        8);
  };
  EXPECT_EQ(threads({{"OMP_NUM_THREADS", "3"}}), 3);
  EXPECT_EQ(threads({{"OMP_NUM_THREADS", "3,2"}}), 3);
  EXPECT_EQ(threads({{"OMP_NUM_THREADS", "99"}}), 8);
  for (const char* nothing : {"", "0", "x", ","})
    EXPECT_EQ(threads({{"OMP_NUM_THREADS", nothing}}), 0);
  EXPECT_EQ(threads({{"OMP_NUM_THREADS", "3"}, {"STORMO_THREADS", "2"}}), 2);
  // torchrun's 1 is nobody's wish
  EXPECT_EQ(threads({{"OMP_NUM_THREADS", "1"}, {"TORCHELASTIC_RUN_ID", "none"}}), 0);
  EXPECT_EQ(threads({{"OMP_NUM_THREADS", "3"}, {"TORCHELASTIC_RUN_ID", "none"}}), 3);
}

TEST(OpenMpWaits, WhatTheUserSaysStays) {
  EXPECT_FALSE(openmp_waits_are_given({"OMP_NUM_THREADS=2"}));
  for (const char* given : {"GOMP_SPINCOUNT=0", "OMP_WAIT_POLICY=passive", "KMP_BLOCKTIME=1"}) {
    EXPECT_TRUE(openmp_waits_are_given({given})) << given;
  }
  ASSERT_FALSE(openmp_waits_are_given(own_environment())) << "set in the environment of this test";
  set_openmp_waits();
  EXPECT_STREQ(std::getenv("GOMP_SPINCOUNT"), "30000");
  ::setenv("GOMP_SPINCOUNT", "7", 1);
  set_openmp_waits();
  EXPECT_STREQ(std::getenv("GOMP_SPINCOUNT"), "7");
  ::unsetenv("GOMP_SPINCOUNT");
  ::setenv("OMP_WAIT_POLICY", "passive", 1);
  set_openmp_waits();
  EXPECT_EQ(std::getenv("GOMP_SPINCOUNT"), nullptr);
  ::unsetenv("OMP_WAIT_POLICY");
}

TEST(ExpandTasksPerNode, Grammar) {
  EXPECT_THAT(expand_tasks_per_node("2"), ElementsAre(2));
  EXPECT_THAT(expand_tasks_per_node("2(x3),1"), ElementsAre(2, 2, 2, 1));
  for (const char* bad : {"", "x", "2(x", "2(x0)", "0", "2(x999999)", "2(3)"})
    EXPECT_THAT(expand_tasks_per_node(bad), IsEmpty()) << bad;
}

TEST(ParsePortRange, Grammar) {
  EXPECT_EQ(*parse_port_range("29500-29600"), (transport::PortRange{29500, 29600}));
  EXPECT_EQ(*parse_port_range("80"), (transport::PortRange{80, 80}));
  for (const char* bad : {"", "x", "0", "5-4", "1-65536", "1-", "-1", "1-2-3"})
    EXPECT_FALSE(parse_port_range(bad).ok()) << bad;
}

TEST(PlacesARank, KnowsLaunchersAndLeavesTheRestAlone) {
  for (const char* name :
       {"RANK", "MASTER_PORT", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK",
        "STORMO_SECRET_FD", "TORCHELASTIC_RUN_ID", "TF_CONFIG"})
    EXPECT_TRUE(places_a_rank(name)) << name;
  for (const char* name : {"PATH", "HOME", "STORMO_TORCH", "OMP_NUM_THREADS", "RANKING", ""})
    EXPECT_FALSE(places_a_rank(name)) << name;
}

}  // namespace
}  // namespace stormo::launch
