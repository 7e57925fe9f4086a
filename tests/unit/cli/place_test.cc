// What -n and -H say against what the environment says.
#include <cli/place.h>

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace stormo::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string, std::less<>>;

Result<transport::Rendezvous> read(const LaunchFlags& flags, const Variables& variables) {
  return read_place(flags, [&](std::string_view name) -> std::optional<std::string> {
    const auto it = variables.find(name);
    if (it == variables.end()) return std::nullopt;
    return it->second;
  });
}

LaunchFlags ranks(int n) {
  LaunchFlags flags;
  flags.ranks = n;
  return flags;
}
LaunchFlags hosts(const char* text) {
  LaunchFlags flags;
  flags.hosts = text;
  return flags;
}

/// Every launcher that is known, with a job of `size` processes of which this is the first.
std::map<std::string, Variables> launchers(const std::string& size) {
  return {
      {"stormo", {{"STORMO_RANK", "0"}, {"STORMO_WORLD_SIZE", size}, {"STORMO_STORE", "unix:x"}}},
      {"torchrun",
       {{"RANK", "0"},
        {"WORLD_SIZE", size},
        {"LOCAL_RANK", "0"},
        {"LOCAL_WORLD_SIZE", size},
        {"MASTER_ADDR", "localhost"},
        {"MASTER_PORT", "29500"}}},
      {"slurm",
       {{"SLURM_STEP_ID", "0"},
        {"SLURM_PROCID", "0"},
        {"SLURM_STEP_NUM_TASKS", size},
        {"SLURM_STEP_NUM_NODES", "1"},
        {"SLURM_LOCALID", "0"},
        {"SLURM_NODEID", "0"},
        {"SLURM_STEP_TASKS_PER_NODE", size}}},
      {"openmpi",
       {{"OMPI_COMM_WORLD_RANK", "0"},
        {"OMPI_COMM_WORLD_SIZE", size},
        {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", size}}},
      {"mpich",
       {{"PMI_RANK", "0"},
        {"PMI_SIZE", size},
        {"MPI_LOCALRANKID", "0"},
        {"MPI_LOCALNRANKS", size}}}};
}

TEST(ReadPlace, WithoutFlagsTheEnvironmentSaysIt) {
  for (const auto& [source, variables] : launchers("2")) {
    const auto place = read({}, variables);
    ASSERT_TRUE(place.ok()) << place.status().message();
    EXPECT_EQ(place->source, source);
    EXPECT_EQ(place->size, 2);
  }
  EXPECT_EQ(read(ranks(2), {})->source, "none");
}

TEST(ReadPlace, FlagsThatSayTheSameChangeNothing) {
  for (const char* size : {"1", "2"})
    for (const auto& [source, variables] : launchers(size))
      EXPECT_EQ(read(ranks(std::atoi(size)), variables)->source, source);
  // so are the ranks of `stormo train -H a:1,b:1` started
  EXPECT_EQ(read(hosts("a:1,b:1"), launchers("2").at("stormo"))->source, "stormo");
}

TEST(ReadPlace, OtherRanksThanAJobOfThisProcessAloneAreStartedHere) {
  for (const LaunchFlags& flags : {ranks(2), hosts("a:1,b:1")}) {
    for (const auto& [source, variables] : launchers("1")) {
      const auto place = read(flags, variables);
      ASSERT_TRUE(place.ok()) << place.status().message();
      EXPECT_EQ(place->source, "none") << source;
    }
  }
}

TEST(ReadPlace, OtherRanksThanALargerJobHasAreRefusedAndBothAreNamed) {
  for (const LaunchFlags& flags : {ranks(1), ranks(2), hosts("a:1,b:1")}) {
    for (const auto& [source, variables] : launchers("4")) {
      const Status status = read(flags, variables).status();
      EXPECT_EQ(status.code(), Code::kInvalidArgument) << source;
      EXPECT_THAT(status.message(),
                  AllOf(HasSubstr(flags.ranks ? "-n " : "-H a:1,b:1"), HasSubstr("rank 0 of 4"),
                        HasSubstr(launch::placing_variables(source))));
    }
  }
  EXPECT_FALSE(read(hosts("a:1,b:1"), launchers("2").at("slurm")).ok())
      << "these ranks may be on other hosts";
}

TEST(ReadPlace, WhoComesLaterToAnElasticJobMayBeBeyondTheRanksThatItBeganWith) {
  Variables variables{{"STORMO_RANK", "2"},       {"STORMO_WORLD_SIZE", "3"},
                      {"STORMO_LOCAL_RANK", "2"}, {"STORMO_LOCAL_SIZE", "3"},
                      {"STORMO_STORE", "unix:x"}, {"STORMO_INCARNATION", "2"}};
  EXPECT_EQ(read(ranks(2), variables)->rank, 2);
  variables["STORMO_INCARNATION"] = "1";
  EXPECT_FALSE(read(ranks(2), variables).ok());
}

TEST(ReadPlace, FlagsStandForTheirVariablesUnderAForeignLauncher) {
  LaunchFlags flags;
  flags.heartbeat = "9s";
  flags.stall_timeout = "8s";
  flags.sockets = 3;
  flags.ports = "5000-5010";
  flags.checksum = true;
  for (const auto& [source, variables] : launchers("2")) {
    Variables with = variables;
    with["STORMO_HEARTBEAT"] = "1s";
    with["STORMO_PORTS"] = "none at all";
    const auto place = read(flags, with);
    if (source == "stormo") {  // its launcher has put them into the environment
      EXPECT_FALSE(place.ok());
      continue;
    }
    ASSERT_TRUE(place.ok()) << place.status().message();
    EXPECT_EQ(place->heartbeat_timeout, std::chrono::seconds(9)) << source;
    EXPECT_EQ(place->stall_timeout, std::chrono::seconds(8));
    EXPECT_EQ(place->sockets, 3);
    EXPECT_EQ(place->ports.last, 5010);
    EXPECT_TRUE(place->checksum);
  }
}

TEST(ReadPlace, WhatOnlyALaunchCanFollowIsRefusedUnderAForeignLauncher) {
  LaunchFlags flags;
  flags.bind = "core";
  EXPECT_THAT(read(flags, launchers("2").at("torchrun")).status().message(),
              AllOf(HasSubstr("--bind core"), HasSubstr("torchrun")));
  EXPECT_TRUE(read(flags, launchers("2").at("stormo")).ok());
}

}  // namespace
}  // namespace stormo::cli
