// What `stormo bench step` makes of flags, and of what contenders measured.
#include <cli/bench/step/opponents.h>
#include <cli/bench/step/options.h>
#include <cli/bench/step/table.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include <stormo/codec/codec.h>

namespace stormo::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(BenchStepOptions, ListsEverythingWrong) {
  StepArguments a;
  a.models = {"mpl", "cnn", "vgg"};
  a.strategy = "host_share";
  a.against = {"pytorch_ddp", "tensorflow", "nccl"};
  a.rate = "fast";
  a.launch.bind = "tight";
  const std::string text = to_step_options(a).status().message();
  for (const char* part :
       {"'mpl'", "did you mean mlp?", "'vgg'", "'host_share'", "did you mean host_shared?",
        "'tensorflow'", "'nccl'", "--rate", "--bind"})
    EXPECT_THAT(text, HasSubstr(part));
  EXPECT_THAT(text, Not(HasSubstr("'cnn'")));
}

TEST(BenchStepOptions, ListWrongNumbersWithWhatElseIsWrong) {
  StepArguments a;
  CLI::App app;
  add_training_flags(app, a, "rank", "", "");
  add_made_hosts_flags(app, a);
  app.parse(
      "--model mpl --batch 0 --micro-batches -1 --steps 2 --rounds many -n 0 --sockets 17 "
      "--ranks-per-host 1.5");
  const std::string text = to_step_options(a).status().message();
  for (const char* part :
       {"'mpl'", "--batch: must be a whole number of at least 1, not 0", "--micro-batches",
        "--steps: must be a whole number of at least 3, not 2", "--rounds", "not many",
        "--ranks: ", "--sockets: must be a whole number from 1 to 16, not 17", "--ranks-per-host"})
    EXPECT_THAT(text, HasSubstr(part));
}

TEST(BenchStepOptions, TakeWhatTheModelsSay) {
  StepArguments a;
  a.models = {"gpt", "wide"};
  a.strategy = "fsdp3";
  a.against = {"pytorch_fsdp", "pytorch_fsdp"};
  auto options = to_step_options(a).take_or_throw();
  ASSERT_EQ(options.jobs.size(), 2u);
  EXPECT_EQ(options.jobs[0].batch, 12);
  EXPECT_EQ(options.jobs[1].batch, 16);
  EXPECT_THAT(options.jobs[1].strategy->recipe,
              ElementsAre("strategy.kind=fsdp", "strategy.stage=3"));
  a.strategy = "1f1b";  // in 8 micro-batches
  EXPECT_EQ(to_step_options(a).take_or_throw().jobs[0].batch, 16);
  a.strategy = "fsdp3";
  EXPECT_THAT(options.against, ElementsAre("pytorch_fsdp"));
  EXPECT_EQ(options.namespaces, 0);
  a.batch = 5;
  a.steps = 7;
  a.launch.hosts = "2";
  a.rate = "1gbit";
  options = to_step_options(a).take_or_throw();
  EXPECT_EQ(options.jobs[0].batch, 5);
  EXPECT_EQ(options.jobs[0].steps, 7);
  EXPECT_EQ(options.namespaces, 2);
}

const TrainingOpponent& named(const std::string& name) {
  return *std::ranges::find(step_opponents(), name, &TrainingOpponent::name);
}

/// What is said of an opponent of the first model.
std::string refusal(const std::string& opponent, const std::string& model,
                    const std::string& strategy, int ranks, int batch = 0, int micro_batches = 0) {
  StepArguments a;
  a.models = {model};
  a.strategy = strategy;
  a.batch = batch;
  a.micro_batches = micro_batches;
  const auto options = to_step_options(a).take_or_throw();
  return check_opponent(named(opponent), options.jobs.front(), ranks, /*slow=*/false).message();
}

TEST(BenchStepOpponents, CanDoWhatIsMeasuredByDefault) {
  for (const char* opponent :
       {"pytorch_gpipe", "pytorch_1f1b", "pytorch_interleaved", "pytorch_zero_bubble"}) {
    EXPECT_EQ(refusal(opponent, "gpt", "1f1b", 2), "");
  }
  EXPECT_EQ(refusal("pytorch_tensor", "gpt", "tensor", 2), "");
  EXPECT_EQ(refusal("pytorch_tensor", "mlp", "tensor", 3), "");
  EXPECT_EQ(refusal("pytorch_ddp", "cnn", "ddp", 3), "");
}

TEST(BenchStepOpponents, AreToldBeforeTheyStartWhatTheyCannotDo) {
  EXPECT_THAT(refusal("pytorch_1f1b", "gpt", "1f1b", 2, 12, 8), HasSubstr("use --batch 16"));
  EXPECT_THAT(refusal("pytorch_gpipe", "gpt", "1f1b", 2, 5, 8), HasSubstr("use --batch 8"));
  EXPECT_THAT(refusal("pytorch_1f1b", "gpt", "1f1b", 4, 6, 2), HasSubstr("4 or more"));
  EXPECT_EQ(refusal("pytorch_gpipe", "gpt", "1f1b", 4, 6, 2), "");
  EXPECT_THAT(refusal("pytorch_interleaved", "gpt", "1f1b", 2, 15, 5), HasSubstr("2 rounds"));
  EXPECT_THAT(refusal("pytorch_interleaved", "gpt", "1f1b", 4), HasSubstr("multiple of 8"));
  EXPECT_THAT(refusal("pytorch_1f1b", "mlp", "1f1b", 2), HasSubstr("mlp is none"));
  EXPECT_THAT(refusal("pytorch_1f1b", "gpt", "ddp", 2), HasSubstr("--strategy 1f1b"));
  EXPECT_THAT(refusal("pytorch_tensor", "gpt", "tensor", 3), HasSubstr("4 heads"));
}

TEST(BenchStepOptions, HaveReplicasWithEachCodec) {
  const auto find = [](std::string_view name) {
    return std::ranges::find(step_strategies(), name, &StepStrategy::name);
  };
  for (const CodecRow& codec : codec_rows()) {
    const auto row = find("ddp_" + std::string(codec.word));
    ASSERT_EQ(row != step_strategies().end(), codec.codec != Codec::kNone) << codec.word;
    if (codec.codec == Codec::kNone) continue;
    EXPECT_EQ(row->recipe.back(), "strategy.compression=" + std::string(codec.word));
  }
  EXPECT_FALSE(find("ddp_bfloat16")->deviates);
  EXPECT_TRUE(find("ddp_sign")->deviates);
}

TEST(BenchStepOpponents, OfPipelinesAndPowerSgdNeedNumpy) {
  EXPECT_EQ(named("pytorch_powersgd").imports.back().package, "numpy");
  EXPECT_EQ(named("pytorch_1f1b").imports.back().package, "numpy");
  EXPECT_EQ(named("pytorch_ddp").imports.back().package, "torch");
  EXPECT_EQ(named("pytorch_ddp_stormo").imports.back().package, "stormo-torch");
}

TEST(BenchStepOptions, NamesAreUnique) {
  std::set<std::string_view> names;
  for (const StepModel& model : step_models()) EXPECT_TRUE(names.insert(model.name).second);
  names.clear();
  for (const StepStrategy& strategy : step_strategies()) {
    EXPECT_TRUE(names.insert(strategy.name).second) << strategy.name;
    EXPECT_THAT(strategy.recipe.front(), HasSubstr("strategy.kind="));
  }
}

bench::StepRecord rank(int rank, int host, double p50_s, std::uint64_t pss, double last_loss = 1) {
  return {.rank = rank,
          .host = host,
          .p50_s = p50_s,
          .p90_s = 2 * p50_s,
          .steps = 20,
          .pss = pss,
          .peak_rss = 10 * pss,
          .first_loss = 2,
          .compared_loss = 1.5,
          .last_loss = last_loss};
}

TEST(StepRecords, SurviveTheirText) {
  const bench::StepRecord one = rank(1, 0, 0.25, 7);
  bench::StepRecord zero = rank(0, 0, 0.5, 9);
  zero.last_loss = std::numeric_limits<double>::quiet_NaN();
  const auto back = bench::parse_step_records("[1] " + to_json(one) + "\n" + to_json(zero) + "\n")
                        .take_or_throw();
  ASSERT_EQ(back.size(), 2u);
  EXPECT_EQ(back[0].rank, 0);
  EXPECT_EQ(back[0].pss, 9u);
  EXPECT_TRUE(std::isnan(back[0].last_loss));
  EXPECT_EQ(back[1].p50_s, 0.25);
  EXPECT_EQ(back[1].compared_loss, 1.5);
  EXPECT_FALSE(bench::parse_step_records("[W] a warning\n").ok());
  EXPECT_FALSE(bench::parse_step_records(R"({"rank": 0})").ok());
}

TEST(StepSummary, IsTheMeanOfRanksAndTheMedianOfRounds) {
  const StepSummary s = summarize({{rank(0, 0, 1, 100), rank(1, 0, 3, 50), rank(2, 1, 2, 120)},
                                   {rank(0, 0, 9, 110), rank(1, 0, 9, 60), rank(2, 1, 9, 130)},
                                   {rank(0, 0, 4, 90), rank(1, 0, 4, 40), rank(2, 1, 4, 20)}});
  EXPECT_THAT(s.round_p50_s, ElementsAre(2, 9, 4));
  EXPECT_EQ(s.p50_s, 4);
  EXPECT_EQ(s.p90_s, 8);
  EXPECT_EQ(s.pss_per_rank, 120);
  EXPECT_EQ(s.pss_per_host, 150) << "of 150, 170 and 130";
  EXPECT_EQ(s.peak_rss_per_rank, 1200);
  EXPECT_TRUE(s.trained);
}

TEST(StepSummary, LossesMustFallInEveryRoundAndOnEveryRank) {
  EXPECT_FALSE(summarize({{rank(0, 0, 1, 1)}, {rank(0, 0, 1, 1, 2.5)}}).trained);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(summarize({{rank(0, 0, 1, 1), rank(1, 0, 1, 1, nan)}}).trained);
}

/// Ours takes 1, 2, 4; alone 2, 2, 2 with malloc as it is, 1, 4, 4 tuned.
StepRow row() {
  const auto rounds = [](std::initializer_list<double> times) {
    StepRounds out;
    for (const double t : times) out.push_back({rank(0, 0, t, 100)});
    return summarize(out);
  };
  return {.job = {.model = &step_models()[0],
                  .strategy = &step_strategies()[0],
                  .batch = 64,
                  .steps = 20},
          .ours = rounds({1, 2, 4}),
          .without_communication = choose_malloc(
              "no_communication",
              {{kDefaultMalloc, rounds({2, 2, 2})}, {kTunedMalloc, rounds({1, 4, 4})}}),
          .against = {choose_malloc("pytorch_ddp", {{kDefaultMalloc, rounds({3, 8, 8})}}),
                      choose_malloc("arena", {{kDefaultMalloc, rounds({1, 1, 1})}})},
          .left_out = {{"pytorch_fsdp", "no torch"}}};
}

TEST(StepTable, ComparesWithTheBetterMallocRoundByRound) {
  const auto json = nlohmann::json::parse(step_json(row()));
  EXPECT_EQ(json["op"], "step");
  EXPECT_EQ(json["model"], "mlp");
  EXPECT_EQ(json["verified"], true);
  EXPECT_EQ(json["rounds"], 3);
  const auto& alone = json["over_no_communication"];
  EXPECT_EQ(alone["malloc"], "default");
  EXPECT_EQ(alone["malloc_p50_s"]["tuned"], 4);
  EXPECT_EQ(alone["ratio"], 1) << "ours over theirs: 0.5, 1, 2";
  EXPECT_EQ(alone["ratio_min"], 0.5);
  EXPECT_EQ(alone["ratio_max"], 2);
  const auto& ddp = json["against"]["pytorch_ddp"];
  EXPECT_EQ(ddp["ratio"], 3) << "theirs over ours: 3, 4, 2";
  EXPECT_EQ(ddp["p50_s"], 8);
  EXPECT_EQ(ddp["memory"]["pss_per_host"], 100);
  EXPECT_EQ(json["allocator"]["over_default"]["ratio"], 2);
  EXPECT_EQ(json["allocator"]["over_tuned"]["ratio_min"], 1);
  EXPECT_EQ(json["left_out"]["pytorch_fsdp"], "no torch");
}

TEST(StepTable, ComparesStormosBackendWithGlooRoundByRound) {
  StepRow with = row();
  const auto add = [&](const char* name, std::initializer_list<double> times) {
    StepSummary s = with.ours;
    s.round_p50_s = times;
    with.against.push_back(choose_malloc(name, {{kDefaultMalloc, s}}));
  };
  add("pytorch_ddp_stormo", {2, 2, 4});
  auto ddp = nlohmann::json::parse(step_json(with))["against"]["pytorch_ddp_stormo"]["instead_of"];
  EXPECT_EQ(ddp["over"], "pytorch_ddp");
  EXPECT_EQ(ddp["speedup"], 2) << "3, 8, 8 over 2, 2, 4";
  EXPECT_EQ(ddp["speedup_min"], 1.5);
  EXPECT_FALSE(ddp.contains("exposed")) << "without the loop nobody knows";
  add("pytorch", {1, 1, 1});
  ddp = nlohmann::json::parse(step_json(with))["against"]["pytorch_ddp_stormo"]["instead_of"];
  EXPECT_DOUBLE_EQ(ddp["exposed"], 3.0 / 7) << "1/2, 1/7, 3/7";
  EXPECT_THAT(step_table(with), HasSubstr("pytorch_ddp_stormo over pytorch_ddp:  2.000   1.500"));
}

TEST(StepTable, NamesOtherLosses) {
  StepRow wrong = row();
  EXPECT_TRUE(verified(wrong));
  EXPECT_THAT(step_table(wrong), Not(HasSubstr("WRONG")));
  EXPECT_THAT(step_table(wrong), HasSubstr("pytorch_fsdp        left out: no torch"));
  wrong.against[0].tried.begin()->second.compared_loss *= 1.01;
  EXPECT_TRUE(verified(wrong)) << "theirs";
  EXPECT_THAT(step_table(wrong), HasSubstr("OTHER LOSSES"));
  wrong.ours.compared_loss *= 1.01;
  EXPECT_FALSE(verified(wrong));
  EXPECT_THAT(step_table(wrong), HasSubstr("WRONG"));
}

TEST(StepTable, ExpectsOtherLossesOfWhatLosesGradients) {
  StepRow with = row();
  with.against[0].name = "pytorch_powersgd";
  StepSummary& theirs = with.against[0].tried.begin()->second;
  theirs.compared_loss *= 1.01;
  EXPECT_THAT(step_table(with), Not(HasSubstr("OTHER LOSSES")));
  theirs.first_loss *= 1.01;
  EXPECT_THAT(step_table(with), HasSubstr("OTHER LOSSES")) << "of the weights that all begin with";
  StepStrategy sign = *with.job.strategy;
  sign.deviates = true;
  with.job.strategy = &sign;
  with.ours.compared_loss *= 1.01;
  EXPECT_TRUE(verified(with));
  with.ours.first_loss *= 1.01;
  EXPECT_FALSE(verified(with));
}

}  // namespace
}  // namespace stormo::cli
