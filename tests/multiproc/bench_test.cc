// `stormo bench` as users run it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>

#include "process.h"
#include "tests/built.h"

namespace stormo::testing {
namespace {

using ::testing::HasSubstr;
using Words = std::vector<std::string>;

constexpr const char* kOperations[] = {"all_reduce", "reduce", "broadcast", "all_gather",
                                       "scan",       "gather", "scatter",   "reduce_scatter",
                                       "all_to_all", "barrier"};

Outcome bench(const Words& more) {
  Words words = {built("stormo"), "bench"};
  words.insert(words.end(), more.begin(), more.end());
  return run_to_end(words);
}

std::vector<nlohmann::json> lines_of(const Outcome& o) {
  std::vector<nlohmann::json> lines;
  for (const std::string& line : split_lines(o.out))
    if (!line.empty()) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

class Bench : public ::testing::TestWithParam<const char*> {};

TEST_P(Bench, VerifiesAndPrintsItsFields) {
  for (const char* ranks : {"2", "3"}) {
    const Outcome o =
        bench({GetParam(), "-n", ranks, "--bytes", "8,1000", "--time", "1ms", "--json", "--buffers",
               std::string(ranks) == "2" ? "arena" : "private"});
    ASSERT_EQ(o.status, 0) << o.err;
    const auto lines = lines_of(o);
    ASSERT_EQ(lines.size(), std::string(GetParam()) == "barrier" ? 1u : 2u) << o.out;
    for (const auto& line : lines) {
      EXPECT_EQ(line.at("op"), GetParam());
      EXPECT_EQ(line.at("ranks"), std::stoi(ranks));
      EXPECT_EQ(line.at("verified"), true) << line;
      EXPECT_GE(line.at("iterations"), 200);
      EXPECT_GT(line.at("p50_s"), 0.0);
      EXPECT_LE(line.at("p50_s"), line.at("p90_s"));
      EXPECT_LE(line.at("p90_s"), line.at("p99_s"));
      for (const char* field : {"algbw", "busbw", "cpu_s", "switches", "dtype", "transport"})
        EXPECT_TRUE(line.contains(field)) << field;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Bench, ::testing::ValuesIn(kOperations),
                         [](const auto& i) { return std::string(i.param); });

TEST(BenchProgram, ProbesTheMachineAtEverySize) {
  for (const char* op : {"all_reduce", "broadcast"}) {
    const Outcome o = bench(
        {op, "-n", "2", "--bytes", "8,64K,1M", "--time", "1ms", "--dtype", "bfloat16", "--json"});
    ASSERT_EQ(o.status, 0) << o.err;
    const auto lines = lines_of(o);
    ASSERT_EQ(lines.size(), 3u);
    for (const auto& line : lines) EXPECT_GT(line.at("roofline"), 0.0) << line;
  }
}

TEST(BenchProgram, ListsEverythingWrong) {
  const Outcome o = bench({"all_reduce", "-n", "2", "--bytes", "8,9", "--against", "nonsense",
                           "--dtype", "float128", "--time", "1parsec"});
  EXPECT_EQ(o.status, 2);
  for (const char* part : {"'nonsense'", "float128", "1parsec"})
    EXPECT_THAT(o.err, HasSubstr(part));
  const Outcome odd = bench({"all_reduce", "-n", "2", "--bytes", "9,10"});
  EXPECT_EQ(odd.status, 2);
  EXPECT_THAT(odd.err, HasSubstr("9 is no multiple of 4"));
  EXPECT_THAT(odd.err, HasSubstr("10 is no multiple of 4"));
  const Outcome unknown = bench({"all_reduced", "-n", "2"});
  EXPECT_EQ(unknown.status, 2);
  EXPECT_THAT(unknown.err, HasSubstr("did you mean 'all_reduce'?"));
}

TEST(BenchProgram, AnOpponentThatIsMissingIsAnErrorUnlessAnyWillDo) {
  const Words nobody = {"all_reduce", "-n", "2",       "--bytes",   "8",        "--time",    "1ms",
                        "--rounds",   "1",  "--tools", "/dev/null", "--python", "/bin/false"};
  Words both = nobody, all = nobody;
  both.insert(both.end(), {"--against", "openmpi,mpich,intelmpi,gloo"});
  all.insert(all.end(), {"--against", "all", "--json"});
  const Outcome refused = bench(both);
  EXPECT_EQ(refused.status, 2);
  for (const char* name : {"openmpi", "mpich", "intelmpi", "gloo"})
    EXPECT_THAT(refused.err, HasSubstr(std::string("--against: ") + name + ": "));
  const Outcome alone = bench(all);
  EXPECT_EQ(alone.status, 0) << alone.err;
  EXPECT_THAT(alone.err, HasSubstr("left out: openmpi"));
  EXPECT_EQ(lines_of(alone).at(0).at("verified"), true);
}

class BenchMpi : public ::testing::TestWithParam<const char*> {};

TEST_P(BenchMpi, TakesPartInEveryOperation) {
  const std::string name = GetParam();
  for (const char* operation : kOperations) {
    const Outcome o = bench({operation, "-n", "2", "--bytes", "8,64K", "--time", "1ms", "--json",
                             "--rounds", "1", "--against", name});
    if (o.status == 2 && o.err.find("is missing") != std::string::npos) {
      // ./check installs Open MPI, tools/setup.sh bench the others
      if (name == "openmpi") GTEST_SKIP() << "set-up: " << o.err;
      GTEST_SKIP() << "optional: " << o.err;
    }
    ASSERT_EQ(o.status, 0) << o.err;
    const auto lines = lines_of(o);
    ASSERT_EQ(lines.size(), std::string(operation) == "barrier" ? 1u : 2u);
    for (const auto& line : lines) {
      EXPECT_EQ(line.at("against").at(name).at("verified"), true) << line;
      EXPECT_GT(line.at("against").at(name).at("p50_s"), 0.0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, BenchMpi, ::testing::Values("openmpi", "mpich", "intelmpi"),
                         [](const auto& i) { return std::string(i.param); });

TEST(BenchProgram, ComparesWithOpenMpiInRounds) {
  const std::string svg =
      std::filesystem::temp_directory_path() / ("bench_test" + std::to_string(::getpid()) + ".svg");
  const Outcome o = bench({"all_gather", "-n", "2", "--bytes", "8,64K", "--time", "1ms", "--json",
                           "--rounds", "2", "--against", "openmpi", "--svg", svg});
  if (o.status == 2 && o.err.find("is missing") != std::string::npos)
    GTEST_SKIP() << "set-up: " << o.err;
  ASSERT_EQ(o.status, 0) << o.err;
  const auto lines = lines_of(o);
  ASSERT_EQ(lines.size(), 2u);
  for (const auto& line : lines) {
    EXPECT_EQ(line.at("rounds"), 2);
    const auto& theirs = line.at("against").at("openmpi");
    EXPECT_EQ(theirs.at("verified"), true);
    EXPECT_GT(theirs.at("p50_s"), 0.0);
    EXPECT_LE(theirs.at("ratio_min"), theirs.at("ratio"));
    EXPECT_LE(theirs.at("ratio"), theirs.at("ratio_max"));
  }
  std::ifstream file(svg);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(text, HasSubstr("</svg>"));
  std::filesystem::remove(svg);
}

TEST(BenchStep, ListsEverythingWrong) {
  const Outcome o = bench({"step", "--model", "mpl,cnn", "--strategy", "none", "--against", "jax"});
  EXPECT_EQ(o.status, 2);
#ifdef STORMO_HAVE_TORCH
  for (const char* part : {"'mpl'", "'none'", "'jax'"}) EXPECT_THAT(o.err, HasSubstr(part));
#else
  EXPECT_THAT(o.err, HasSubstr("without libtorch"));
#endif
}

TEST(BenchStep, TellsNumbersThatAreTooSmall) {
  for (const auto& [kind, flag, least] : {std::tuple("step", "--steps", 3),
                                          {"step", "--micro-batches", 1},
                                          {"async", "--batch", 1},
                                          {"async", "--rounds", 1}}) {
    const Outcome o = bench({kind, flag, std::to_string(least - 1)});
    EXPECT_EQ(o.status, 2) << flag;
    EXPECT_THAT(o.err, HasSubstr(std::string(flag) + ": must be a whole number of at least " +
                                 std::to_string(least)));
  }
}

#ifdef STORMO_HAVE_TORCH
TEST(BenchStep, TrainsLikeOneProcessAndGoesOnWithoutPython) {
  Process p({built("stormo"), "bench", "step", "--model", "mlp", "--strategy", "ddp", "-n", "2",
             "--rounds", "1", "--steps", "3", "--json", "--against", "arena,pytorch_ddp",
             "--python", "/bin/false"});
  ASSERT_EQ(p.wait(std::chrono::minutes(1)), 0) << p.err();
  const auto line = nlohmann::json::parse(p.out());
  EXPECT_EQ(line.at("model"), "mlp");
  EXPECT_EQ(line.at("ranks"), 2);
  EXPECT_EQ(line.at("rounds"), 1);
  EXPECT_EQ(line.at("verified"), true) << line;
  EXPECT_GT(line.at("p50_s"), 0.0);
  EXPECT_LE(line.at("p50_s"), line.at("p90_s"));
  // weights, gradients and two moments of 669706 parameters
  EXPECT_GT(line.at("memory").at("pss_per_rank"), 4.0 * 4 * 669706);
  EXPECT_LE(line.at("memory").at("pss_per_rank"), line.at("memory").at("pss_per_host"));
  EXPECT_GT(line.at("over_no_communication").at("ratio"), 0.0);
  EXPECT_EQ(line.at("over_no_communication").at("malloc_p50_s").size(), 2u);
  EXPECT_EQ(line.at("against").at("arena").at("verified"), true) << line;
  EXPECT_THAT(line.at("left_out").at("pytorch_ddp").get<std::string>(), HasSubstr("pip install"));
}

TEST(BenchAsync, ComparesStrategiesAndNamesWhoIsAbsent) {
  Process p({built("stormo"),
             "bench",
             "async",
             "--model",
             "mlp",
             "--strategy",
             "parameter_server:async,parameter_server:sync,ddp",
             "-n",
             "2",
             "--rounds",
             "1",
             "--steps",
             "100",
             "--json",
             "--against",
             "no_communication,torch_rpc,tensorflow_ps,tensorflow_mirrored",
             "--python",
             "/bin/false",
             "--tensorflow",
             "/bin/false"});
  ASSERT_EQ(p.wait(std::chrono::minutes(2)), 0) << p.err();
  const auto line = nlohmann::json::parse(p.out());
  EXPECT_EQ(line.at("op"), "async");
  EXPECT_EQ(line.at("strategy"), "parameter_server:async");
  EXPECT_EQ(line.at("workers"), 2);
  EXPECT_EQ(line.at("verified"), true) << line;
  EXPECT_GT(line.at("steps_per_s"), 0.0);
  EXPECT_FALSE(line.contains("slow"));
  for (const char* name : {"parameter_server:sync", "ddp", "no_communication"}) {
    const auto& theirs = line.at("against").at(name);
    EXPECT_EQ(theirs.at("verified"), true) << line;
    EXPECT_GT(theirs.at("steps_per_s"), 0.0);
    EXPECT_LE(theirs.at("ratio_min"), theirs.at("ratio_max"));
  }
  // both average the same gradients
  const auto last = [&](const char* name) {
    return line.at("against").at(name).at("losses").at("last").get<double>();
  };
  EXPECT_NEAR(last("parameter_server:sync"), last("ddp"), 1e-3);
  EXPECT_NEAR(last("no_communication"), last("ddp"), 1e-3) << "all workers have the same batches";
  for (const char* name : {"torch_rpc", "tensorflow_ps", "tensorflow_mirrored"})
    EXPECT_THAT(line.at("not_available").at(name).get<std::string>(), HasSubstr("pip install"));
}

TEST(BenchAsync, OneSlowWorkerHoldsBackTheOthersOnlyInSync) {
  Process p({built("stormo"), "bench", "async", "--model", "mlp", "--strategy",
             "parameter_server:async,parameter_server:sync", "-n", "2", "--rounds", "1", "--steps",
             "60", "--json", "--slow", "1:10x"});
  ASSERT_EQ(p.wait(std::chrono::minutes(2)), 0) << p.err();
  const auto line = nlohmann::json::parse(p.out());
  EXPECT_EQ(line.at("slow"), "1:10x");
  // ten times as many steps on a machine that does nothing else
  EXPECT_GT(line.at("against").at("parameter_server:sync").at("step_ratio"), 2.0) << line;
}
#endif

TEST(BenchAsync, ListsEverythingWrong) {
  const Outcome o = bench({"async", "--model", "mpl", "--strategy", "parameter_server:none",
                           "--against", "jax", "--slow", "5:2x"});
  EXPECT_EQ(o.status, 2);
#ifdef STORMO_HAVE_TORCH
  for (const char* part : {"'mpl'", "'parameter_server:none'", "parameter_server:ssp", "'jax'",
                           "tensorflow_ps", "no worker 5"})
    EXPECT_THAT(o.err, HasSubstr(part));
#else
  EXPECT_THAT(o.err, HasSubstr("without libtorch"));
#endif
}

TEST(BenchServers, CountsEveryPush) {
  const Outcome o = bench({"servers", "-n", "2", "--servers", "3", "--bytes", "4K,256K", "--time",
                           "5ms", "--rounds", "2", "--json"});
  ASSERT_EQ(o.status, 0) << o.err;
  const auto lines = lines_of(o);
  ASSERT_EQ(lines.size(), 2u) << o.out;
  for (const auto& line : lines) {
    EXPECT_EQ(line.at("workers"), 2);
    EXPECT_EQ(line.at("servers"), 3);
    EXPECT_EQ(line.at("verified"), true) << line;
    for (const char* pull : {"copied", "in_place"}) {
      EXPECT_GT(line.at(pull).at("keys_per_s"), 0.0);
      EXPECT_LE(line.at(pull).at("roofline_min"), line.at(pull).at("roofline"));
    }
  }
  EXPECT_EQ(bench({"servers", "--servers", "0"}).status, 2);
}

TEST(BenchServers, OnOtherHostsCountEveryPushToo) {
  const std::vector<std::pair<std::vector<std::string>, int>> ways = {
      {{"-H", "localhost:2,127.0.0.1:1", "--processes", "1"}, 2},
      {{"-n", "2", "--processes", "2", "--beside"}, 2}};
  for (const auto& [way, workers] : ways) {
    std::vector<std::string> words = {"servers", "--servers", "4",        "--bytes", "4K,256K",
                                      "--time",  "5ms",       "--rounds", "2",       "--json"};
    words.insert(words.end(), way.begin(), way.end());
    const Outcome o = bench(words);
    ASSERT_EQ(o.status, 0) << o.err;
    const auto lines = lines_of(o);
    ASSERT_EQ(lines.size(), 2u) << o.out;
    for (const auto& line : lines) {
      EXPECT_EQ(line.at("workers"), workers);
      EXPECT_EQ(line.at("verified"), true) << line;
      EXPECT_GT(line.at("bytes_per_s_each_way"), 0.0);
      EXPECT_LE(line.at("over_streams_min"), line.at("over_streams"));
    }
  }
}

/// What is in the way of network namespaces here; empty: nothing.
std::string no_namespaces() {
  const std::string name = "stp-" + std::to_string(::getpid());
  const std::string script = "ip netns add " + name + " && ip netns exec " + name +
                             " true; s=$?; ip netns del " + name + "; exit $s";
  const Outcome o = run_to_end({"/bin/sh", "-c", script});
  return o.status == 0 ? "" : "cannot use network namespaces: " + o.err;
}

TEST(BenchProgram, MakesHostsAndTakesThemAway) {
  const Outcome o = bench({"all_reduce", "--hosts", "2", "--rate", "1gbit", "--bytes", "8,64K",
                           "--time", "1ms", "--json"});
  if (::geteuid() != 0) {
    EXPECT_EQ(o.status, 2);
    EXPECT_THAT(o.err, HasSubstr("need root"));
    return;
  }
  if (const std::string reason = no_namespaces(); !reason.empty())
    GTEST_SKIP() << "root: " << reason;
  ASSERT_EQ(o.status, 0) << o.err;
  const auto lines = lines_of(o);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].at("hosts"), 2);
  EXPECT_EQ(lines[0].at("transport"), "tcp");
  EXPECT_GT(lines[1].at("line"), 0.0);
  // their names are in the command that was printed: -H bNNN-1:1,...
  const std::size_t at = o.err.find("-H b") + 3;
  const std::string name = o.err.substr(at, o.err.find('-', at) - at);
  EXPECT_EQ(count(run_to_end({"/bin/sh", "-c", "ip netns list"}).out, name), 0);
}

}  // namespace
}  // namespace stormo::testing
