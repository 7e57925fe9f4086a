// Keys that only some choices of another key use.
#include <stormo/train/recipe/recipe_keys.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include <stormo/parallel/strategy/strategy_table.h>

namespace stormo::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

ParsedRecipe recipe_with(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return parse_recipe("schema_version = 1\n" + text, "r.toml", ".", overrides);
}

/// "(of strategy.kind=mirrored, ddp)": those that have the key.
std::string users_of(std::string_view key) {
  std::string out;
  for (const std::string_view name : parallel::strategies_with(key)) {
    out += (out.empty() ? "(of strategy.kind=" : ", ") + std::string(name);
  }
  return out + ")";
}

/// Of a recipe that is right but for the overrides.
std::vector<std::string> wrong_keys(std::vector<std::string> overrides) {
  for (const char* basis : {"batch=8", "steps=1", "model.sizes=784,10", "data.path=."}) {
    overrides.emplace_back(basis);
  }
  return check_recipe(recipe_with("", overrides), 2);
}

TEST(RecipeKeys, KeysOfOtherKindsAreRefused) {
  EXPECT_THAT(wrong_keys({"strategy.kind=parameter_server", "stage=1", "hybrid=true",
                          "strategy.overlap=false"}),
              ElementsAre("command line: strategy.stage: strategy 'parameter_server' does not use "
                          "strategy.stage (of strategy.kind=fsdp), strategy.hybrid (of "
                          "strategy.kind=fsdp); leave them out, or choose what uses them"));
  EXPECT_THAT(wrong_keys({"strategy.kind=central_storage", "strategy.overlap=false"}),
              ElementsAre("command line: strategy.overlap: strategy 'central_storage' does not use "
                          "strategy.overlap " +
                          users_of("overlap") + "; leave it out, or choose what uses it"));
  EXPECT_THAT(wrong_keys({"stage=2"}), ElementsAre(HasSubstr("strategy 'ddp' does not use")));
  EXPECT_THAT(wrong_keys({"strategy.kind=fsdp", "stage=1", "strategy.overlap=false"}), IsEmpty());
  EXPECT_THAT(wrong_keys({"strategy.overlap=false"}), IsEmpty());
  // auto chooses from kinds that have these
  EXPECT_THAT(wrong_keys({"strategy.kind=auto", "stage=1", "hybrid=true", "strategy.tensor=2"}),
              IsEmpty());
  EXPECT_THAT(wrong_keys({"strategy.kind=auto", "strategy.servers=2"}),
              ElementsAre(HasSubstr("strategy 'auto' does not use strategy.servers")));
  // a default is nobody's choice, also where a file says it
  EXPECT_THAT(wrong_keys({"strategy.kind=central_storage", "stage=3", "hybrid=false",
                          "strategy.overlap=true", "period=8"}),
              IsEmpty());
  // nobody knows what a kind uses that cannot be read
  EXPECT_THAT(wrong_keys({"strategy.kind=ddpp", "stage=1"}), IsEmpty());
}

/// Another value than the default of a key of `strategy`.
std::string other_value(const RecipeField& field) {
  const Recipe defaults;
  const std::string value = format_value(field, defaults);
  if (!field.choices.empty()) return std::string(field.choices.back());
  if (value == "true" || value == "false") return value == "true" ? "false" : "true";
  if (field.key == "strategy.spatial") return "1,2";
  if (value == "[]") return "2";
  if (value.find('.') != std::string::npos) return "0.5";
  return value == "2" ? "3" : "2";
}

// Each key with each kind acts, or is refused by a message that names it.
TEST(RecipeKeys, EachKeyOfStrategiesActsOrIsRefused) {
  for (const RecipeField& field : recipe_fields()) {
    const std::string key(field.key.substr(field.key.find('.') + 1));
    const auto users = parallel::strategies_with(key);
    if (!field.key.starts_with("strategy.") || users.empty()) continue;
    for (const std::string& kind : parallel::strategy_names()) {
      if (std::ranges::count(users, kind) > 0 || kind == "auto") continue;
      const std::string assignment = std::string(field.key) + "=" + other_value(field);
      const ParsedRecipe p = recipe_with("", {"strategy.kind=" + kind, assignment});
      ASSERT_THAT(p.errors, IsEmpty()) << assignment;
      EXPECT_THAT(wrong_keys({"strategy.kind=" + kind, assignment}),
                  testing::Contains(HasSubstr("strategy '" + kind + "' does not use " +
                                              std::string(field.key) + " (of ")));
    }
  }
}

TEST(RecipeKeys, ADensityIsOfCodecsThatSendAFewNumbers) {
  EXPECT_THAT(wrong_keys({"density=0.1", "compression=int8"}),
              ElementsAre(HasSubstr(
                  "does not use strategy.density (of strategy.compression=top_k, threshold, "
                  "random_k, auto); leave it out")));
  EXPECT_THAT(wrong_keys({"density=0.1", "compression=top_k"}), IsEmpty());
  EXPECT_THAT(wrong_keys({"density=0.1", "compression=auto"}), IsEmpty());
}

TEST(RecipeKeys, MomentumOfTheRanksIsOfCodecsThatSendFewNumbers) {
  const std::string correction = "momentum_correction=true";
  EXPECT_THAT(
      wrong_keys({correction, "compression=int8"}),
      ElementsAre(HasSubstr("does not use strategy.momentum_correction (of "
                            "strategy.compression=top_k, threshold, random_k); leave it out")));
  EXPECT_THAT(wrong_keys({correction, "compression=top_k", "strategy.kind=fsdp"}),
              ElementsAre(HasSubstr("does not use strategy.momentum_correction")));
  const std::string sgd = "optimizer.kind=sgd", momentum = "optimizer.momentum=0.9";
  EXPECT_THAT(wrong_keys({correction, "compression=top_k", sgd, momentum}), IsEmpty());
  for (const std::string& other : {std::string("optimizer.kind=adamw"), sgd}) {
    EXPECT_THAT(wrong_keys({correction, "compression=top_k", other}),
                ElementsAre(HasSubstr("strategy.momentum_correction: is of the momentum of sgd")));
  }
  EXPECT_THAT(wrong_keys({"strategy.warmup_steps=9", "compression=top_k"}), IsEmpty());
  EXPECT_THAT(wrong_keys({"strategy.warmup_steps=9"}),
              ElementsAre(HasSubstr("strategy.warmup_steps: lowers the share of gradients")));
}

TEST(RecipeKeys, ARankOfMatricesIsOfPowerSgd) {
  EXPECT_THAT(wrong_keys({"matrix_rank=2", "compression=top_k"}),
              ElementsAre(HasSubstr("does not use strategy.matrix_rank (of "
                                    "strategy.compression=powersgd, auto); leave it out")));
  EXPECT_THAT(wrong_keys({"matrix_rank=2", "compression=powersgd"}), IsEmpty());
}

TEST(RecipeKeys, KeysOfOtherPoliciesAreRefused) {
  const std::string server = "strategy.kind=parameter_server";
  const auto refused = [](const std::string& key, const std::string& choice) {
    return ElementsAre(HasSubstr("strategy 'parameter_server' does not use strategy." + key +
                                 " (of strategy." + choice + "); leave it out"));
  };
  EXPECT_THAT(wrong_keys({server, "bound=5"}), refused("bound", "policy=ssp"));
  EXPECT_THAT(wrong_keys({server, "policy=ssp", "bound=5"}), IsEmpty());
  EXPECT_THAT(wrong_keys({server, "policy=ssp", "warm_start=5"}),
              refused("warm_start", "policy=async"));
  EXPECT_THAT(wrong_keys({server, "period=4"}), refused("period", "policy=average"));
  EXPECT_THAT(wrong_keys({server, "policy=average", "period=4"}), IsEmpty());
  EXPECT_THAT(wrong_keys({"strategy.kind=parameter_averaging", "period=4"}), IsEmpty());
  EXPECT_THAT(wrong_keys({server, "lambda=1", "compensation=inverse_staleness"}),
              refused("lambda", "compensation=delay_compensated, adaptive_delay_compensated"));
  EXPECT_THAT(wrong_keys({server, "worker_timeout=1"}),
              ElementsAre(HasSubstr("write strategy.server_processes=1")));
  // a schedule whose steps overlap is drained
  const std::vector<std::string> delayed = {"strategy.pipeline=2", "schedule=ddg", "period=4"};
  EXPECT_THAT(wrong_keys(delayed), IsEmpty());
  EXPECT_THAT(wrong_keys({"strategy.pipeline=2", "period=4"}),
              ElementsAre(HasSubstr("strategy 'ddp' does not use strategy.period")));
}

TEST(RecipeKeys, OptionsOfAProgramAreJudgedAlike) {
  TrainerOptions options;
  options.servers.count = 2;
  options.averaging.max_distance = 3;
  EXPECT_EQ(check_keys(options).message(), "strategy 'ddp' does not use strategy.servers " +
                                               users_of("servers") + ", strategy.max_distance " +
                                               users_of("max_distance") +
                                               "; leave them out, or choose what uses them");
  options.servers.count = 0;
  options.strategy.kind = Strategy::Kind::kParameterAveraging;
  EXPECT_TRUE(check_keys(options).ok());
  options = {};
  options.strategy.kind = Strategy::Kind::kParameterServer;
  options.servers.policy.bound = 5;
  EXPECT_TRUE(check_keys(options).ok()) << "of another policy";
}

TEST(RecipeKeys, KeysOfAReplacedChoiceAreLeftOut) {
  const std::string file =
      "[strategy]\nkind = 'parameter_server'\npolicy = 'ssp'\nbound = 5\nservers = 2\n"
      "overlap = false\n";
  const ParsedRecipe ddp = recipe_with(file, {"strategy.kind=ddp"});
  EXPECT_THAT(ddp.errors, IsEmpty());
  EXPECT_THAT(ddp.left_out, ElementsAre("left out, as nothing uses it now: strategy.policy (of "
                                        "strategy.kind=parameter_server), strategy.bound (of "
                                        "strategy.kind=parameter_server), strategy.servers " +
                                        users_of("servers")));
  EXPECT_FALSE(ddp.recipe.train.gradients.overlap) << "ddp has it";
  EXPECT_EQ(to_json(ddp.recipe), to_json(recipe_with("[strategy]\noverlap = false\n").recipe));
  EXPECT_EQ(ddp.at("strategy.bound"), "strategy.bound: ");
  const ParsedRecipe async = recipe_with(file, {"policy=async"});
  EXPECT_THAT(async.left_out, ElementsAre(HasSubstr("strategy.bound (of strategy.policy=ssp)")));
  EXPECT_EQ(async.recipe.train.servers.count, 2);
  EXPECT_THAT(recipe_with(file).left_out, IsEmpty());
  // what is typed is meant, and so is what never acted in the file
  const ParsedRecipe typed = recipe_with(file, {"strategy.kind=ddp", "bound=4"});
  EXPECT_THAT(typed.left_out, ElementsAre(testing::Not(HasSubstr("strategy.bound"))));
  EXPECT_EQ(unused_keys(typed.recipe).size(), 1u);
  const ParsedRecipe wrong = recipe_with("[strategy]\nperiod = 4\n", {"strategy.kind=fsdp"});
  EXPECT_THAT(wrong.left_out, IsEmpty());
  EXPECT_EQ(unused_keys(wrong.recipe).size(), 1u);
}

}  // namespace
}  // namespace stormo::train
