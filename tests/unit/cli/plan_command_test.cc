// Runs `stormo plan ...` in this process, and holds the documents that quote its output or a test
// equal to them.
#include <cli/commands.h>
#include <cli/plan/load.h>
#include <cli/plan/search.h>
#include <cli/plan/step.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stormo/codec/codec.h>
#include <stormo/parallel/strategy/strategy.h>
#include <stormo/schedule/builders.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/built.h"

namespace stormo::cli {

// Need libtorch.
Status search_plans(const PlanOptions&) { return {}; }
Result<bool> simulate_open_recipe(const PlanOptions&) { return false; }

// Stands in for the reader of recipes, which needs libtorch: two layers whose times are known.
Result<StepInput> load_recipe_step(const PlanOptions& o, const std::vector<int>& ranks_per_host) {
  plan::ModelShape model;
  for (const std::string name : {"first", "second"}) {
    model.segments.push_back({.name = name,
                              .parameters = {{name + ".weight", 1000}},
                              .flops_per_sample = 0,
                              .borrowed = {}});
  }
  STORMO_ASSIGN_OR_RETURN(plan::StepPlan plan,
                          parallel::plan_for({.kind = parallel::Strategy::Kind::kMirrored},
                                             std::move(model), {.ranks_per_host = ranks_per_host}));
  StepInput step{.plan = std::move(plan), .ranks_per_host = ranks_per_host};
  if (o.measured) {
    step.measured = {.forward = {1e-3, 2e-3}, .backward = {2e-3, 4e-3}, .update = 1e-3};
    step.memory.activations = {100, 200};
  }
  return step;
}

namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

struct Outcome {
  int exit_code = 0;
  std::string out;
  std::string err;
};

Outcome run(std::vector<std::string> arguments) {
  CLI::App app("stormo");
  Invocation invocation;
  add_plan_command(app, invocation);
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants a vector
  arguments.push_back("plan");
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& e) {
    invocation.exit_code = e.get_exit_code() == 0 ? kExitOk : kExitUsage;
    std::fputs(e.what(), stderr);
  }
  std::fflush(nullptr);
  return {invocation.exit_code, ::testing::internal::GetCapturedStdout(),
          ::testing::internal::GetCapturedStderr()};
}

std::vector<json> objects(const std::string& text) {
  std::vector<json> out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) out.push_back(json::parse(line));
  return out;
}

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

const std::filesystem::path kRoot = testing::repository();

/// A file of this test's own, removed at its end.
class TextFile {
 public:
  TextFile(const std::string& name, const std::string& text)
      : path_(std::filesystem::temp_directory_path() /
              ("stormo_plan_test_" + std::to_string(getpid()) + "_" + name)) {
    std::ofstream(path_, std::ios::binary) << text;
  }
  ~TextFile() { std::filesystem::remove(path_); }
  TextFile(const TextFile&) = delete;
  TextFile& operator=(const TextFile&) = delete;
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

TEST(PlanCommand, ListsEveryAlgorithm) {
  const Outcome text = run({"list"});
  EXPECT_EQ(text.exit_code, kExitOk);
  EXPECT_THAT(text.out,
              HasSubstr("hierarchical_all_reduce           all_reduce      --ranks --hosts"));
  EXPECT_THAT(text.out,
              HasSubstr("chain_broadcast                   broadcast       --ranks --root "
                        "--pieces"));
  EXPECT_EQ(objects(run({"list", "--json"}).out).size(), schedule::builders().size());
}

TEST(PlanCommand, ShowsSchedulesAndStepPlans) {
  const Outcome ring = run({"show", "ring_reduce_scatter", "--ranks", "2", "--text"});
  EXPECT_EQ(ring.exit_code, kExitOk);
  EXPECT_THAT(ring.out,
              StartsWith("schedule v1 ring_reduce_scatter reduce_scatter ranks=2 chunks=2\n"
                         "round 0: 0>1 +c1 1>0 +c0\n# hash "));
  const Outcome mirrored = run({"show", "mirrored", "--ranks", "3", "--json"});
  const json object = objects(mirrored.out).at(0);
  EXPECT_EQ(object["kind"], "step_plan");
  EXPECT_THAT(object["text"].get<std::string>(), HasSubstr("all_reduce 0-5 over dp"));
}

TEST(PlanCommand, ShowsTheRoundsAsATable) {
  const Outcome o = run({"show", "halving_doubling_all_reduce", "--ranks", "4"});
  EXPECT_EQ(o.exit_code, kExitOk) << o.err;
  EXPECT_EQ(o.out,
            "halving_doubling_all_reduce: all_reduce among 4 ranks; 4 chunks, 4 rounds, 24 "
            "transfers\n"
            "what each rank sends; + the receiver reduces, = it copies\n"
            "\n"
            "round  rank 0      rank 1      rank 2      rank 3\n"
            "0      +c2,3 to 1  +c0,1 to 0  +c2,3 to 3  +c0,1 to 2\n"
            "1      +c1 to 2    +c3 to 3    +c0 to 0    +c2 to 1\n"
            "2      =c0 to 2    =c2 to 3    =c1 to 0    =c3 to 1\n"
            "3      =c0,1 to 1  =c2,3 to 0  =c0,1 to 3  =c2,3 to 2\n");
  const Outcome rooted = run({"show", "direct_broadcast", "--ranks", "9", "--root", "2"});
  EXPECT_THAT(rooted.out, HasSubstr("9 ranks, root 2; 1 chunks, 1 rounds, 8 transfers\n"));
  EXPECT_THAT(rooted.out, HasSubstr("  =c0 to 0,1,3-8\n"));
}

TEST(PlanCommand, CutsTablesOfLargeSchedules) {
  const Outcome o = run({"show", "ring_all_reduce", "--ranks", "64"});
  EXPECT_THAT(o.out, HasSubstr("of 64 ranks are shown. 40 of 126 rounds are shown. --text has "
                               "all.\n"));
  std::istringstream lines(o.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 120u);
  EXPECT_THAT(run({"show", "direct_all_gather", "--ranks", "3"}).out, HasSubstr("=c0 to 1,2"));
  EXPECT_THAT(run({"show", "direct_all_to_all", "--ranks", "9"}).out, HasSubstr("; 6 more"));
}

TEST(PlanCommand, DrawsPictures) {
  EXPECT_THAT(run({"show", "ring_all_reduce", "--dot"}).out,
              StartsWith("digraph \"ring_all_reduce\""));
  EXPECT_THAT(run({"show", "ring_all_reduce", "--svg"}).out, StartsWith("<svg xmlns="));
  EXPECT_EQ(run({"show", "ring_all_reduce", "--svg", "--dot"}).exit_code, kExitUsage);
  EXPECT_EQ(run({"show", "ring_all_reduce", "--svg", "--json"}).exit_code, kExitUsage);
  EXPECT_EQ(run({"show", "ring_all_reduce", "--text", "--json"}).exit_code, kExitUsage);
}

TEST(PlanCommand, WhatItShowsItReads) {
  const TextFile ring("ring", run({"show", "ring_all_reduce", "--ranks", "5", "--text"}).out);
  EXPECT_EQ(run({"verify", ring.path()}).exit_code, kExitOk);
  EXPECT_EQ(run({"show", ring.path(), "--text"}).out, read(ring.path()));
  const TextFile step("step", "# mine\n" + run({"show", "mirrored"}).out);
  EXPECT_EQ(run({"verify", step.path()}).exit_code, kExitOk);
}

TEST(PlanCommand, VerifiesAllForARange) {
  const Outcome all = run({"verify", "--all", "--ranks", "1..9", "--json"});
  EXPECT_EQ(all.exit_code, kExitOk) << all.err;
  const auto lines = objects(all.out);
  EXPECT_EQ(lines.size(), schedule::builders().size());
  for (const json& line : lines) EXPECT_EQ(line["ok"], true);
}

TEST(PlanCommand, APlanThatFailsExitsWithOne) {
  const TextFile wrong("wrong", "schedule v1 x all_reduce ranks=2 chunks=1\nround 0: 1>0 +c0\n");
  const std::string reason = "at the end rank 1, chunk 0: holds the terms of 1 of 2 ranks";
  for (const char* command : {"verify", "cost", "simulate"}) {
    const Outcome o = run({command, wrong.path()});
    EXPECT_EQ(o.exit_code, kExitFailed) << command;
    EXPECT_EQ(o.out, "");
    EXPECT_EQ(o.err, "stormo plan: " + wrong.path() + ": " + reason + "\n");
  }
  const json line = objects(run({"verify", wrong.path(), "--json"}).out).at(0);
  EXPECT_EQ(line["ok"], false);
  EXPECT_EQ(line["error"], reason);
  const TextFile bad("bad", "schedule v1 x all_reduce ranks=2 chunks=1\nround 0: 1>9 +c0\n");
  const Outcome o = run({"verify", bad.path()});
  EXPECT_EQ(o.exit_code, kExitFailed);
  EXPECT_THAT(o.err, HasSubstr(": 2:12: the receiving rank must be in 0..1"));
}

TEST(PlanCommand, AStepPlanThatFailsNamesTheActionAndTheValue) {
  std::string text = run({"show", "fsdp", "--hosts", "4"}).out;
  const std::size_t at = text.find("release_gradients 4-5");
  ASSERT_NE(at, std::string::npos) << text;
  text.replace(at, 17, "reshard 4-5 over shard #");  // the segment is needed by nobody any more
  const TextFile wrong("no_such", text);
  const Outcome o = run({"verify", wrong.path()});
  EXPECT_EQ(o.exit_code, kExitFailed);
  EXPECT_THAT(o.err, HasSubstr("(reshard 4-5 over shard: fc3.weight .. fc3.bias): needs the whole, "
                               "but the weights of parameter 4 (fc3.weight) are shard over shard"));
}

TEST(PlanCommand, BadUsageExitsWithTwoAndSaysTheRemedy) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"show", "ring_allreduce"}, "did you mean 'ring_all_reduce'?"},
      {{"show", "mirored"}, "did you mean 'mirrored'?"},
      {{"show", "/no/such/plan"}, "neither an algorithm nor a file"},
      {{"show", "star_all_reduce", "--ranks", "0"}, "--ranks: '0' is neither"},
      {{"show", "star_all_reduce", "--ranks", "4x"}, "--ranks: '4x' is neither"},
      {{"show", "star_all_reduce", "--ranks", "99999"}, "from 1 to 65536"},
      {{"show", "star_all_reduce", "--ranks", "2..3"}, "a range needs 'verify --all'"},
      {{"verify", "--all", "--ranks", "3..2"}, "nor a range such as 1..33"},
      {{"verify", "--all", "ring_all_reduce"}, "either a plan or --all"},
      {{"verify"}, "give the name of an algorithm or a file"},
      {{"show", "ring_all_reduce", "--ranks", "65536"}, "use fewer ranks"},
      {{"show", "torus_all_reduce", "--hosts", "3"}, "cannot be spread evenly"},
      {{"show", "hierarchical_all_reduce", "--hosts", "5"}, "give 1 to as many hosts as ranks"},
      {{"show", "binomial_broadcast", "--root", "4"}, "root 4 is not a rank"},
      {{"cost", "ring_all_reduce", "--bytes", "1x"}, "--bytes: '1x' is not a size"},
      {{"cost", "ring_all_reduce", "--bytes", "2000000T"}, "--bytes: "},
      {{"cost", "ring_all_reduce", "--hosts", "5"}, "--hosts: 4 ranks cannot be on 5 hosts"},
      {{"show", "mirrored", "--svg"}, "'stormo plan simulate --svg' draws its timeline"},
      {{"simulate", "ring_all_reduce", "--svg"}, "--svg draws steps"},
      {{"show", "mirrored", "lr=1"}, "'lr=1': only a recipe has keys to change"},
      {{"show", "ring_all_reduce", "--ranks", "64", "--svg"}, "give fewer ranks or pieces"},
      {{"show", "chain_scan", "--pieces", "0"}, "0 pieces; give 1 or more"},
      {{"simulate", "ring_all_reduce", "--topology", "/no/file"}, "cannot read '/no/file'"},
  };
  for (const auto& [arguments, message] : cases) {
    const Outcome o = run(arguments);
    EXPECT_EQ(o.exit_code, kExitUsage) << message;
    EXPECT_EQ(o.out, "");
    EXPECT_THAT(o.err, StartsWith("stormo plan: "));
    EXPECT_THAT(o.err, HasSubstr(message));
  }
  EXPECT_EQ(run({}).exit_code, kExitUsage);
  EXPECT_EQ(run({"show"}).exit_code, kExitUsage);
  EXPECT_EQ(run({"show", "ring_all_reduce", "--rank", "4"}).exit_code, kExitUsage);
}

TEST(PlanCommand, PricesACollective) {
  const Outcome o = run({"cost", "hierarchical_all_reduce", "--ranks", "4", "--hosts", "2",
                         "--bytes", "4000", "--json"});
  const json c = objects(o.out).at(0);
  EXPECT_EQ(c["rounds"], 4);
  EXPECT_EQ(c["max_bytes_sent"], 4000 + 2000);
  EXPECT_EQ(c["max_host_bytes_sent"], 4000);
  EXPECT_THAT(run({"cost", "ring_all_reduce", "--bytes", "4MiB"}).out,
              HasSubstr("most sent by a rank      6 MiB\n"));
}

TEST(PlanCommand, SaysWhatWouldRunAndWhy) {
  const Outcome o = run({"choose", "--ranks", "4", "--hosts", "2", "--bytes", "65536", "--json"});
  EXPECT_EQ(o.exit_code, kExitOk) << o.err;
  const auto lines = objects(o.out);
  ASSERT_EQ(lines.size(), 9u) << "one per goal";
  EXPECT_EQ(lines[0]["goal"], "all_reduce");
  EXPECT_EQ(lines[0]["algorithm"], "leader_all_reduce");
  EXPECT_EQ(lines[0]["why"], "default rule for even, up to 4 ranks, up to 128 KiB");
  const TextFile mine(
      "selection", "selection v1\nall_reduce one_host ranks=0 bytes=99 star_all_reduce pieces=1\n");
  const std::string text = run({"choose", "--bytes", "64", "--selection", mine.path()}).out;
  EXPECT_THAT(text, HasSubstr("star_all_reduce"));
  EXPECT_THAT(text, HasSubstr("the file's rule for one_host, up to 99 B"));
  const std::string crowded = run({"choose", "--ranks", "3", "--cores", "2"}).out;
  EXPECT_THAT(crowded, HasSubstr("default rule for crowded_host, up to 3 ranks"));
  EXPECT_THAT(run({"choose", "--ranks", "3", "--cores", "3"}).out, Not(HasSubstr("crowded_host")));
  const TextFile wrong("selection", "selection v1\nall_reduce nowhere\n");
  const Outcome bad = run({"choose", "--selection", wrong.path()});
  EXPECT_EQ(bad.exit_code, kExitUsage);
  EXPECT_THAT(bad.err, HasSubstr(":2:12: unknown host layout"));
}

TEST(PlanCommand, SimulatesWithTheTopologyOfAFile) {
  const TextFile topology("topology",
                          "topology v1\nhosts 2\nintra latency_s=1e-3 byte_s=1e-6\n"
                          "inter latency_s=0 byte_s=0\nreduce byte_s=0\n");
  const Outcome o = run({"simulate", "ring_all_reduce", "--ranks", "2", "--bytes", "2000",
                         "--topology", topology.path(), "--json"});
  EXPECT_EQ(o.exit_code, kExitOk) << o.err;
  const auto lines = objects(o.out);
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines[0]["event"], "transfer");
  EXPECT_DOUBLE_EQ(lines[4]["duration_us"].get<double>(), 2 * (1000 + 1000));
  const Outcome text = run({"simulate", "ring_all_reduce", "--ranks", "2", "--bytes", "2000",
                            "--topology", topology.path()});
  EXPECT_THAT(text.out, StartsWith("ring_all_reduce: 2 ranks on 1 host(s), 2.0 KiB: 4.0 ms\n"));
  const Outcome wrong = run({"simulate", "ring_all_reduce", "--topology", topology.path()});
  EXPECT_EQ(wrong.exit_code, kExitUsage);
  EXPECT_THAT(wrong.err, HasSubstr("the topology has 2 ranks, the plan 4"));
}

TEST(PlanCommand, PricesAStep) {
  const Outcome o = run({"cost", "ddp", "--ranks", "4", "--hosts", "2", "--json"});
  ASSERT_EQ(o.exit_code, kExitOk) << o.err;
  const json c = objects(o.out).at(0);
  EXPECT_EQ(c["ranks"], 4);
  EXPECT_EQ(c["between_hosts_per_rank"].size(), 4u);
  EXPECT_GT(c["axes"].at(0)["between_hosts"], 0);
  EXPECT_EQ(c["memory_between_steps"]["parameters"],
            4 * (784 * 512 + 512 * 512 + 512 * 10 + 1034) / 2)
      << "two ranks of a host share one copy";
  EXPECT_FALSE(c["activations_known"]);
  EXPECT_THAT(run({"cost", "one_device", "--ranks", "1"}).out,
              HasSubstr("No rank sends anything."));
}

// A rank of two sends the code of the other's half, then of its own.
TEST(PlanCommand, PricesEveryCodecToTheByte) {
  const std::string plan = run({"show", "mirrored", "-n", "2", "--text"}).out;
  const std::string reduction = "all_reduce 0-5 over dp";
  ASSERT_THAT(plan, HasSubstr(reduction));
  const auto sent = [&](Codec codec) {
    std::string with = plan;
    with.insert(with.find(reduction) + reduction.size(), " codec " + to_string(codec));
    const TextFile file("codec", with);
    const Outcome o = run({"cost", file.path(), "--hosts", "2", "--json"});
    EXPECT_EQ(o.exit_code, kExitOk) << o.err;
    return objects(o.out).at(0)["between_hosts_per_rank"].at(0).get<std::int64_t>();
  };
  constexpr std::int64_t kHalf = (784 * 512 + 512 * 512 + 512 * 10 + 1034) / 2;
  for (const CodecRow& row : codec_rows()) {
    if (row.sums != CodecSums::kPerMessage) continue;
    const Codec codec(row.codec, 0.03);
    EXPECT_EQ(sent(codec) - sent(Codec::kInt8),
              2 * (row.bytes(kHalf, 0.03) - row_of(Codec::kInt8).bytes(kHalf, 1)));
  }
}

TEST(PlanCommand, PricesAStepWithServers) {
  const std::vector<std::string> plan = {"parameter_server", "-n", "3"};
  const auto with = [&](const std::string& command, const std::vector<std::string>& rest = {}) {
    std::vector<std::string> all = {command};
    all.insert(all.end(), plan.begin(), plan.end());
    all.insert(all.end(), rest.begin(), rest.end());
    return run(all);
  };
  EXPECT_THAT(with("show").out, HasSubstr("pull 0-5 over dp"));
  EXPECT_EQ(with("verify").exit_code, kExitOk);
  const json c = objects(with("cost", {"--json"}).out).at(0);
  const std::int64_t bytes = 4 * (784 * 512 + 512 * 512 + 512 * 10 + 1034);
  EXPECT_EQ(c["pulled_per_rank"], bytes);
  EXPECT_EQ(c["pushed_per_rank"], bytes);
  EXPECT_EQ(c["memory_between_steps"]["parameters"], bytes);
  EXPECT_EQ(c["memory_between_steps"]["optimizer_state"], 0);
  EXPECT_THAT(with("cost").out, HasSubstr("Each worker pulls 2.6 MiB from the servers and pushes"));
  // the link between hosts is slower than memory
  const auto seconds = [&](const std::string& hosts) {
    return objects(with("simulate", {"--hosts", hosts, "--json"}).out)
        .back()["seconds"]
        .get<double>();
  };
  EXPECT_GT(seconds("3"), seconds("1") + 0.01);
}

TEST(PlanCommand, SimulatesAStepByMeasuredTimes) {
  const Outcome o = run({"simulate", "some.toml", "-n", "2", "--measured", "--json"});
  ASSERT_EQ(o.exit_code, kExitOk) << o.err;
  const auto lines = objects(o.out);
  const json& end = lines.back();
  EXPECT_TRUE(end["measured"]);
  EXPECT_GE(end["seconds"].get<double>(), 10e-3);
  EXPECT_LT(end["idle_share"].get<double>(), 0.1);
  EXPECT_EQ(lines.at(0)["name"], "forward");
  EXPECT_EQ(lines.at(0)["lane"], "compute");
  const Outcome unknown = run({"simulate", "some.toml", "-n", "2"});
  EXPECT_EQ(unknown.exit_code, kExitUsage);
  EXPECT_THAT(unknown.err, HasSubstr("give a recipe and --measured"));
}

TEST(PlanCommand, RefusesAStepThatDoesNotFitWithFigures) {
  PlanOptions o;
  o.plan = "some.toml";
  o.measured = true;
  const StepInput step = load_recipe_step(o, {2}).take_or_throw();
  const std::int64_t needed = analysis::memory(step.plan, step.memory).peak.total();
  EXPECT_TRUE(check_fits(step, 2, static_cast<std::uint64_t>(2 * needed)).ok());
  const Status st = check_fits(step, 2, static_cast<std::uint64_t>(2 * needed) - 1);
  EXPECT_EQ(st.code(), Code::kExhausted);
  EXPECT_THAT(st.message(), StartsWith("2 rank(s) on this host need at least"));
  EXPECT_THAT(st.message(), HasSubstr("300 B for activations"));
}

TEST(PlanCommand, SaysWhichNumbersAnOptionTakes) {
  for (const std::string wrong : {"-1", "1.5", "x", ""}) {
    EXPECT_EQ(run({"show", "mirrored", "--rank", wrong}).err,
              "--rank: must be a whole number of at least 0, not " + wrong);
    EXPECT_EQ(run({"choose", "--cores", wrong}).err,
              "--cores: must be a whole number of at least 1, not " + wrong);
  }
  for (const std::string wrong : {"0", "-2", "inf", "nan", "x", "1e-320", "2e9"}) {
    EXPECT_EQ(run({"simulate", "mirrored", "--gflops", wrong}).err,
              "--gflops: must be a number from 0.001 to 1e+09, not " + wrong);
  }
  EXPECT_EQ(run({"show", "mirrored", "--rank", "0"}).exit_code, kExitOk);
  EXPECT_EQ(run({"simulate", "mirrored", "--gflops", "0.5"}).exit_code, kExitOk);
}

TEST(PlanCommand, RefusesFlagsThatWouldChangeNothing) {
  EXPECT_EQ(
      run({"simulate", "ring_all_reduce", "--samples", "8", "--gflops", "5"}).err,
      "stormo plan: 'ring_all_reduce' is a collective: leave out --samples, --gflops, which is "
      "for training steps\n");
  EXPECT_EQ(run({"cost", "ring_all_reduce", "--measured"}).exit_code, kExitUsage);
  EXPECT_THAT(run({"simulate", "ring_all_reduce", "--trace", "t"}).err,
              HasSubstr("is a collective: leave out --trace"));
  EXPECT_THAT(run({"simulate", "ring_all_reduce", "--lost", "1"}).err,
              HasSubstr("is a collective: leave out --lost"));
  EXPECT_EQ(run({"simulate", "mirrored", "--lost", "1", "--trace", "t"}).exit_code, kExitUsage);
  EXPECT_THAT(run({"simulate", "mirrored", "--lost", "1,9"}).err,
              HasSubstr("peers of a lost rank cannot do its work: the plan has no pipeline"));
  EXPECT_EQ(run({"simulate", "mirrored", "--trace", "t", "--measured"}).exit_code, kExitUsage);
  const Outcome step = run({"cost", "mirrored", "--root", "1", "--pieces", "2", "--bytes", "2KiB"});
  EXPECT_EQ(step.exit_code, kExitUsage);
  EXPECT_THAT(step.err,
              HasSubstr("'mirrored' is a training step: leave out --root, --pieces, --bytes"));
  EXPECT_EQ(run({"cost", "star_all_reduce", "--root", "1", "--pieces", "2"}).err,
            "stormo plan: 'star_all_reduce' takes no --root and no --pieces: leave that out; "
            "'stormo plan list' shows which algorithms take it\n");
  EXPECT_THAT(run({"show", "binomial_broadcast", "--root", "1", "--pieces", "2"}).err,
              HasSubstr("'binomial_broadcast' takes no --pieces: "));
  EXPECT_EQ(run({"show", "binomial_broadcast", "--root", "1"}).exit_code, kExitOk);
  const Outcome all = run({"verify", "--all", "--ranks", "2..3", "--root", "1"});
  EXPECT_EQ(all.exit_code, kExitUsage);
  EXPECT_THAT(all.err, HasSubstr("leave out --root, --pieces"));
}

TEST(PlanCommand, EachSubcommandHasExamplesOfItsOwn) {
  CLI::App app("stormo");
  app.footer("  stormo train");
  Invocation invocation;
  add_plan_command(app, invocation);
  const CLI::App* plan = app.get_subcommand("plan");
  EXPECT_THAT(plan->get_footer(), StartsWith("  stormo plan "));
  const auto all = plan->get_subcommands([](const CLI::App*) { return true; });
  EXPECT_EQ(all.size(), 8U);
  for (const CLI::App* command : all) {
    EXPECT_THAT(command->get_footer(), StartsWith("  stormo plan " + command->get_name()));
  }
}

TEST(PlanCommand, DrawsTheTimelineOfAStep) {
  const std::string svg = run({"simulate", "some.toml", "-n", "3", "--measured", "--svg"}).out;
  EXPECT_THAT(svg, StartsWith("<svg "));
  EXPECT_THAT(svg, HasSubstr(">rank 2</text>"));
  EXPECT_THAT(svg, HasSubstr("<title>action 1 (forward 0-1: first .. second): 3.0 ms at 0"));
  EXPECT_THAT(svg, HasSubstr("class=\"communication\""));
}

TEST(PlanDocuments, TheCostTableIsTheGeneratorsOutput) {
  const std::string document = read(kRoot / "docs" / "algorithms.md");
  const std::string begin = "<!-- begin: stormo plan table --markdown -->\n";
  const std::string end = "<!-- end: stormo plan table --markdown -->\n";
  const std::size_t from = document.find(begin), to = document.find(end);
  ASSERT_NE(from, std::string::npos);
  ASSERT_NE(to, std::string::npos);
  EXPECT_EQ(document.substr(from + begin.size(), to - from - begin.size()),
            run({"table", "--markdown"}).out)
      << "replace the text between the markers by this output";
}

TEST(PlanDocuments, TheWalkShowsTheScheduleThatRuns) {
  EXPECT_THAT(
      read(kRoot / "docs" / "walk-all-reduce.md"),
      HasSubstr("```text\n" + run({"show", "direct_all_reduce", "--ranks", "2", "--text"}).out +
                "```\n"));
}

TEST(PlanDocuments, TheGuideShowsTheExampleThatIsTested) {
  const std::string guide = read(kRoot / "docs" / "guides" / "add-a-collective.md");
  for (const char* part : {"chain_reduce.cc", "declaration.inc", "row.inc"}) {
    const std::string example = read(kRoot / "tests" / "house" / "guide_collective" / part);
    EXPECT_THAT(guide, HasSubstr("```cpp\n" + example + "```\n"))
        << "copy " << part << " into the guide's code block";
  }
}

}  // namespace
}  // namespace stormo::cli
