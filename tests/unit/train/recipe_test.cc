#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include <stormo/parallel/strategy/strategy_table.h>
#include <stormo/train/recipe/recipe.h>
#include <stormo/train/recipe/recipe_schema.h>
#include <stormo/train/step/reducers.h>
#include <stormo/train/step/strategy.h>

namespace stormo::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

ParsedRecipe parse(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return parse_recipe("schema_version = 1\n" + text, "r.toml", "recipes", overrides);
}

TEST(Recipe, ReadsEveryTypeOfValue) {
  const ParsedRecipe p = parse(R"(
name = "small"
precision = "float64"
[model]
kind = "mlp"
sizes = [4, 3, 2]
tied = false
[data]
extensions = [".md", ".h"]
[train]
global_batch = 12
seed = 7
[optimizer]
kind = "adamw"
lr = 1
[learning_rate]
kind = "cosine"
)");
  EXPECT_THAT(p.errors, IsEmpty());
  EXPECT_EQ(p.recipe.train.name, "small");
  EXPECT_EQ(p.recipe.precision, "float64");
  EXPECT_THAT(p.recipe.model.sizes, ElementsAre(4, 3, 2));
  EXPECT_FALSE(p.recipe.model.tied);
  EXPECT_THAT(p.recipe.data.extensions, ElementsAre(".md", ".h"));
  EXPECT_EQ(p.recipe.train.global_batch, 12);
  EXPECT_EQ(p.recipe.train.seed, 7u);
  EXPECT_EQ(p.recipe.train.optimizer.kind, OptimizerOptions::Kind::kAdamW);
  EXPECT_EQ(p.recipe.train.optimizer.lr, 1.0);
  EXPECT_EQ(p.recipe.train.learning_rate.kind, LearningRateOptions::Kind::kCosine);
}

TEST(Recipe, ListsEveryErrorWithItsPosition) {
  const ParsedRecipe p = parse(R"([train]
stepz = 10
global_batch = "many"
seed = 1.5
[optimizer]
kind = "lamp"
lr = -1.0
[modle]
layers = 2
)",
                               {"log_evry=1", "nonsense", "=3", "steps=ten"});
  EXPECT_THAT(
      p.errors,
      testing::UnorderedElementsAre(
          "r.toml:3:1: unknown key 'train.stepz'; did you mean 'train.steps'?",
          R"(r.toml:4:16: train.global_batch: must be whole number, not "many")",
          "r.toml:5:8: train.seed: must be whole number, not 1.5",
          R"(r.toml:7:8: optimizer.kind: must be one of sgd, adamw, adam, adagrad, rmsprop, lion, lars, lamb, lbfgs, muon, not "lamp"; did you mean "lamb"?)",
          "r.toml:8:6: optimizer.lr: must be at least 0, not -1",
          testing::StartsWith("r.toml:9:2: unknown section 'modle'"),
          "command line: unknown key 'log_evry'; did you mean 'train.log_every'?",
          "command line: 'nonsense' is not an override; write key=value",
          "command line: '=3' is not an override; write key=value",
          R"(command line: train.steps: must be whole number, not "ten")"));
}

TEST(Recipe, NamesTheElementOfAListThatIsWrong) {
  const ParsedRecipe p = parse("[model]\nsizes = [784, \"many\", 10]\n[data]\nmean = [0.5, true]\n",
                               {"strategy.cut=2,0", "image=[3,1.5,4]"});
  EXPECT_THAT(
      p.errors,
      testing::UnorderedElementsAre(
          R"(r.toml:3:9: model.sizes: must be a list of whole numbers, but element 2 is "many")",
          "r.toml:5:8: data.mean: must be a list of numbers, but element 2 is true",
          "command line: strategy.cut: element 2: must be at least 1, not 0",
          "command line: data.image: must be a list of whole numbers, but element 2 is 1.5"));
}

TEST(Recipe, KnowsWhatOtherProgramsCallAKey) {
  const ParsedRecipe p =
      parse("[optimizer]\nlearning_rate = 1\n", {"train.batch_size=8", "num_epochs=2"});
  EXPECT_THAT(
      p.errors,
      testing::UnorderedElementsAre(
          "r.toml:3:1: unknown key 'optimizer.learning_rate'; did you mean 'optimizer.lr'?",
          "command line: unknown key 'train.batch_size'; did you mean 'train.global_batch'?",
          "command line: unknown key 'num_epochs'; did you mean 'train.epochs'?"));
}

TEST(Recipe, SaysThatThereAreNoDevicesToChoose) {
  const ParsedRecipe p = parse("device = \"tpu\"\n[train]\naccelerator = \"gpu\"\n",
                               {"strategy.kind=tpu", "device=mps", "strategy=ring"});
  EXPECT_THAT(
      p.errors,
      testing::UnorderedElementsAre(
          "r.toml:2:1: unknown key 'device'; Stormo trains on CPUs only, so there is no device to "
          "choose: leave it out",
          "r.toml:4:1: unknown key 'train.accelerator'; Stormo trains on CPUs only, so there is no "
          "device to choose: leave it out",
          testing::StartsWith(
              "command line: strategy.kind: Stormo trains on CPUs only: it must be one of one_"),
          "command line: unknown key 'device'; Stormo trains on CPUs only, so there is no device "
          "to choose: leave it out",
          testing::StartsWith("command line: strategy.kind: must be one of one_device")));
}

TEST(Recipe, AnEndOfSeveralKeysNamesThemAll) {
  EXPECT_THAT(
      parse("", {"context=64"}).errors,
      testing::ElementsAre("command line: unknown key 'context'; several keys end so: write "
                           "one of model.context, strategy.context"));
}

TEST(Recipe, SyntaxErrorsHaveAPositionToo) {
  const ParsedRecipe p = parse("[train\nsteps = 1\n", {"stepz=1"});
  ASSERT_EQ(p.errors.size(), 2u);
  EXPECT_THAT(p.errors[0], testing::StartsWith("r.toml:2:"));
  EXPECT_THAT(p.errors[1], HasSubstr("train.steps"));
  EXPECT_FALSE(p.readable) << "what else is wrong of it are defaults";
}

TEST(Recipe, OverridesWinAndAreTypedByTheSchema) {
  const std::string text = "[train]\nepochs = 3\n[optimizer]\nlr = 0.5\n";
  const ParsedRecipe p =
      parse(text, {"steps=40", "seed=9", "precision=float64", "log_every=1", "batch=6",
                   "optimizer.lr=1e-3", "strategy.kind=one_device", "data.path=/a b/=c",
                   "model.sizes=8,4", "data.extensions=[\".md\", .cc]", "name=123", "tied=false"});
  EXPECT_THAT(p.errors, IsEmpty());
  EXPECT_EQ(p.recipe.train.steps, 40);
  EXPECT_EQ(p.recipe.train.epochs, 0);
  EXPECT_EQ(p.recipe.train.seed, 9u);
  EXPECT_EQ(p.recipe.precision, "float64");
  EXPECT_EQ(p.recipe.train.log_every, 1);
  EXPECT_EQ(p.recipe.train.global_batch, 6);
  EXPECT_EQ(p.recipe.train.optimizer.lr, 1e-3);
  EXPECT_EQ(p.recipe.train.strategy.kind, Strategy::Kind::kOneDevice);
  EXPECT_EQ(p.recipe.data.path, "/a b/=c");
  EXPECT_THAT(p.recipe.model.sizes, ElementsAre(8, 4));
  EXPECT_THAT(p.recipe.data.extensions, ElementsAre(".md", ".cc"));
  EXPECT_EQ(p.recipe.train.name, "123");
  EXPECT_FALSE(p.recipe.model.tied);
  EXPECT_EQ(p.at("train.steps"), "command line: train.steps: ");
  EXPECT_EQ(p.at("train.eval_every"), "train.eval_every: ");
}

TEST(Recipe, EpochsOnTheCommandLineReplaceStepsOfTheFile) {
  const ParsedRecipe p = parse("[train]\nsteps = 40\n", {"epochs=2"});
  EXPECT_EQ(p.recipe.train.steps, 0);
  EXPECT_EQ(p.recipe.train.epochs, 2);
}

TEST(Recipe, AmbiguousShortNamesAreRefused) {
  EXPECT_THAT(parse("", {"kind=sgd"}).errors,
              ElementsAre(testing::StartsWith("command line: unknown key 'kind'")));
}

TEST(Recipe, ResolvesPathsBesideTheRecipe) {
  EXPECT_EQ(parse("[data]\npath = \"@recipe/..\"\n").recipe.data.path, ".");
  EXPECT_EQ(parse("[data]\npath = \"@recipe/x\"\n").recipe.data.path, "recipes/x");
  EXPECT_EQ(parse("[data]\npath = \"x\"\n").recipe.data.path, "x");
}

TEST(Recipe, RequiresItsSchemaVersion) {
  EXPECT_THAT(parse_recipe("", "r.toml", ".", {}).errors,
              ElementsAre("r.toml: schema_version is missing; write schema_version = 1"));
  EXPECT_THAT(parse_recipe("schema_version = 2", "r.toml", ".", {}).errors,
              ElementsAre("r.toml:1:18: schema_version: must be at most 1, not 2"));
}

TEST(Recipe, TomlRoundTripsToTheSameValue) {
  const ParsedRecipe first =
      parse("name = \"a \\\"quoted\\\" name\"\n",
            {"lr=0.1", "epsilon=1e-9", "model.sizes=1,2,3", "beta2=0.95", "tied=false",
             "optimizer.kind=adamw", "data.path=x\\y", "clip_norm=1", "batch=8"});
  EXPECT_THAT(first.errors, IsEmpty());
  const std::string text = to_toml(first.recipe);
  const ParsedRecipe second = parse_recipe(text, "again", ".", {});
  EXPECT_THAT(second.errors, IsEmpty());
  EXPECT_EQ(to_toml(second.recipe), text);
  EXPECT_EQ(to_json(second.recipe), to_json(first.recipe));
}

TEST(Recipe, JsonHoldsEveryKey) {
  const nlohmann::json json = nlohmann::json::parse(to_json(parse("", {"lr=0.25"}).recipe));
  for (const RecipeField& field : recipe_fields()) {
    std::string pointer = "/" + std::string(field.key);
    std::replace(pointer.begin(), pointer.end(), '.', '/');
    EXPECT_TRUE(json.contains(nlohmann::json::json_pointer(pointer))) << field.key;
  }
  EXPECT_EQ(json["optimizer"]["lr"], 0.25);
}

TEST(RecipeSchema, KeysAreUniqueAndDocumented) {
  std::set<std::string_view> keys;
  for (const RecipeField& field : recipe_fields()) {
    EXPECT_TRUE(keys.insert(field.key).second) << field.key;
    EXPECT_FALSE(field.doc.empty()) << field.key;
    EXPECT_THAT(recipe_reference(), HasSubstr("`" + std::string(field.key) + "`"));
  }
}

TEST(RecipeSchema, KeysOfStrategiesAreThoseOfTheirRows) {
  const std::vector<std::string>& names = parallel::strategy_names();
  std::string all;
  for (const RecipeField& field : recipe_fields()) {
    all += std::string(field.key) + " ";
    if (!field.key.starts_with("strategy.")) continue;
    // "parameter_server, elastic_averaging: ..."
    std::istringstream words(std::string(field.doc.substr(0, field.doc.find(':'))));
    std::vector<std::string_view> named;
    for (std::string word; words >> word;) {
      if (word.ends_with(",")) word.pop_back();
      const auto name = std::ranges::find(names, word);
      if (name != names.end()) named.emplace_back(*name);
    }
    if (named.empty()) continue;
    EXPECT_EQ(named, parallel::strategies_with(field.key.substr(9))) << field.key;
  }
  for (const parallel::StrategyRow& row : parallel::strategy_rows()) {
    std::istringstream keys{std::string(row.keys)};
    for (std::string key; keys >> key;) EXPECT_THAT(all, HasSubstr("strategy." + key + " "));
  }
}

TEST(RecipeSchema, DefaultsAreValid) {
  // A field whose default breaks its own rule could never be printed and read back.
  const std::vector<std::string> overrides = {"batch=1"};
  const ParsedRecipe p = parse_recipe(to_toml(Recipe{}), "defaults", ".", overrides);
  EXPECT_THAT(p.errors, testing::Each(HasSubstr("train.global_batch")));
}

TEST(Recipe, KnowsOptimizersAndSchedules) {
  const ParsedRecipe p =
      parse("", {"optimizer.kind=lamb", "trust=0.02", "nesterov=true", "alpha=0.5",
                 "learning_rate.kind=step", "step_size=30", "gamma=0.5", "base_batch=128"});
  EXPECT_THAT(p.errors, IsEmpty());
  const TrainerOptions& t = p.recipe.train;
  EXPECT_EQ(t.optimizer.kind, OptimizerOptions::Kind::kLamb);
  EXPECT_EQ(t.optimizer.trust, 0.02);
  EXPECT_TRUE(t.optimizer.nesterov);
  EXPECT_EQ(t.optimizer.alpha, 0.5);
  EXPECT_EQ(t.learning_rate.kind, LearningRateOptions::Kind::kStep);
  EXPECT_EQ(t.learning_rate.step_size, 30);
  EXPECT_EQ(t.learning_rate.gamma, 0.5);
  EXPECT_EQ(t.learning_rate.base_batch, 128);
}

/// Of a recipe that is right but for the overrides.
std::vector<std::string> errors_of(std::vector<std::string> overrides) {
  for (const char* basis : {"batch=8", "steps=1", "data.kind=mnist", "model.kind=mlp",
                            "model.sizes=784,10", "data.path=."}) {
    overrides.emplace_back(basis);
  }
  return check_recipe(parse("", overrides), 2);
}

TEST(RecipeCheck, AReducerMeansReplicas) {
  EXPECT_THAT(errors_of({"reducer=ring"}), IsEmpty());
  EXPECT_THAT(errors_of({"reducer=ring", "strategy.kind=fsdp"}),
              ElementsAre(HasSubstr("strategy 'fsdp' does not use strategy.reducer (of ")));
  TrainerOptions options;
  EXPECT_EQ(strategy_of(options)->parameters, Strategy::Parameters::kAuto);
  options.gradients.reducer = Reducer::kRing;
  EXPECT_EQ(strategy_of(options)->parameters, Strategy::Parameters::kReplicated);
  options.strategy.kind = Strategy::Kind::kFsdp;
  EXPECT_THAT(strategy_of(options).status().message(), HasSubstr("leave them out, or use 'ddp'"));
}

TEST(RecipeCheck, AdasumIsOfReplicasAndTakesGradientsAsTheyAre) {
  EXPECT_THAT(errors_of({"reducer=adasum"}), IsEmpty());
  EXPECT_THAT(errors_of({"reducer=adasum", "bucket_bytes=1000"}), IsEmpty());
  for (const char* codec : {"compression=int8", "compression=bfloat16"}) {
    EXPECT_THAT(errors_of({"reducer=adasum", codec}),
                ElementsAre(HasSubstr("strategy.compression: gradients are combined by adasum as "
                                      "they are; leave out strategy.compression")));
  }
  EXPECT_THAT(errors_of({"reducer=adasum", "deterministic=true"}),
              ElementsAre(HasSubstr("leave out the reducer")));
  EXPECT_THAT(errors_of({"reducer=adasum", "strategy.kind=parameter_averaging"}),
              ElementsAre(HasSubstr("does not use strategy.reducer (of ")));
  TrainerOptions options;
  options.gradients.reducer = Reducer::kAdasum;
  EXPECT_EQ(strategy_of(options)->parameters, Strategy::Parameters::kReplicated);
  EXPECT_EQ(step_options_of(options, false, 1).reduction.all_reduce, "adasum");
  options.commits = true;
  EXPECT_THAT(strategy_of(options).status().message(),
              HasSubstr("leave out strategy.reducer=adasum"));
}

TEST(RecipeCheck, MuonNeedsAMomentumAndWholeMatrices) {
  const auto errors_with = [](std::vector<std::string> overrides) {
    overrides.insert(overrides.end(), {"optimizer.kind=muon", "optimizer.nesterov=true"});
    return errors_of(std::move(overrides));
  };
  EXPECT_THAT(errors_with({"optimizer.momentum=0.95", "adjust_lr_fn=original"}), IsEmpty());
  EXPECT_THAT(errors_with({"optimizer.momentum=0.95", "strategy.kind=fsdp"}),
              ElementsAre(HasSubstr("optimizer.kind: muon updates whole matrices, which strategy "
                                    "'fsdp' does not have on each rank: use 'ddp'")));
  EXPECT_THAT(errors_with({}), ElementsAre(HasSubstr("write optimizer.momentum=0.95")));
  TrainerOptions options;
  options.optimizer.kind = OptimizerOptions::Kind::kMuon;
  EXPECT_EQ(strategy_of(options)->parameters, Strategy::Parameters::kReplicated);
}

TEST(RecipeCheck, PartsOfThePositionsNeedAnOutputForEach) {
  const std::string why = ": the output of model mlp is of a whole sample";
  EXPECT_THAT(errors_of({"strategy.context=2"}), ElementsAre(HasSubstr("strategy.context" + why)));
  EXPECT_THAT(errors_of({"strategy.tensor=2", "strategy.sequence_parallel=true"}),
              ElementsAre(HasSubstr("strategy.sequence_parallel" + why)));
  const std::vector<std::string> both = {"batch=8", "steps=1", "data.path=.", "strategy.tensor=2",
                                         "strategy.sequence_parallel=true"};
  const auto errors_with = [&](std::vector<std::string> overrides) {
    overrides.insert(overrides.end(), both.begin(), both.end());
    return check_recipe(parse("", overrides), 2);
  };
  EXPECT_THAT(errors_with({"model.kind=text_classifier", "data.kind=text_classification"}),
              ElementsAre(HasSubstr("the output of model text_classifier is of a whole sample")));
  EXPECT_THAT(errors_with({"model.kind=gpt", "data.kind=text"}), IsEmpty());
}

TEST(RecipeCheck, WeightStashingAndSixteenBits) {
  const std::vector<std::string> asynchronous = {"strategy.pipeline=2", "strategy.schedule=ddg",
                                                 "strategy.weight_stashing=false"};
  EXPECT_THAT(errors_of(asynchronous), IsEmpty());
  std::vector<std::string> narrow = asynchronous;
  narrow.emplace_back("precision=bfloat16");
  EXPECT_THAT(errors_of(narrow), ElementsAre(HasSubstr("use precision=float32, or leave it out")));
}

TEST(RecipeCheck, FindsRatesAndRulesThatMakeNoSense) {
  EXPECT_THAT(errors_of({}), IsEmpty());
  EXPECT_THAT(errors_of({"nesterov=true"}), ElementsAre(HasSubstr("optimizer.momentum=0.9")));
  EXPECT_THAT(errors_of({"nesterov=true", "momentum=0.9"}), IsEmpty());
  EXPECT_THAT(errors_of({"optimizer.kind=lars", "trust=0"}),
              ElementsAre(HasSubstr("optimizer.trust: must be greater than 0")));
  EXPECT_THAT(errors_of({"learning_rate.kind=step"}),
              ElementsAre(HasSubstr("write learning_rate.step_size=N")));
  const std::string elastic = "strategy.kind=elastic_averaging";
  EXPECT_THAT(errors_of({elastic, "moving_rate=1", "period=1"}), IsEmpty());
  EXPECT_THAT(errors_of({elastic, "moving_rate=0"}), IsEmpty());
  EXPECT_THAT(errors_of({elastic, "moving_rate=-1"}), IsEmpty());
  EXPECT_THAT(parse("", {elastic, "moving_rate=1.01", "period=0"}).errors,
              ElementsAre(HasSubstr("strategy.moving_rate"), HasSubstr("strategy.period")));
  EXPECT_THAT(errors_of({elastic, "moving_rate=-0.1"}),
              ElementsAre(HasSubstr("strategy.moving_rate")));
  EXPECT_THAT(errors_of({"deterministic=true"}), IsEmpty());
  EXPECT_THAT(errors_of({"deterministic=true", "reducer=ring"}),
              ElementsAre(HasSubstr("gradients have a reduction of their own")));
  const std::vector<std::string> cosine = {"lr=0.1", "min_lr=0.2", "learning_rate.kind=cosine"};
  EXPECT_THAT(errors_of(cosine), ElementsAre(HasSubstr("0.2 is greater than")));
  std::vector<std::string> scaled = cosine;
  scaled.emplace_back("base_batch=2");  // a fourth of the batch: the peak is 0.4
  EXPECT_THAT(errors_of(scaled), IsEmpty());
}

TEST(RecipeCheck, LogicalShardsNeedOneWayToAddUp) {
  EXPECT_THAT(errors_of({"logical_shards=4", "threads=1"}), IsEmpty());
  EXPECT_THAT(errors_of({"logical_shards=4"}),
              ElementsAre(HasSubstr("threads: logical shards have the same bits where each rank "
                                    "has as many threads")));
  EXPECT_THAT(errors_of({"logical_shards=1", "threads=1"}),
              ElementsAre(HasSubstr(
                  "train.logical_shards: 1 logical shards: each rank computes at least one, and "
                  "there are 2 ranks")));
  EXPECT_THAT(errors_of({"logical_shards=4", "threads=1", "strategy.kind=fsdp"}),
              ElementsAre(HasSubstr("use strategy.kind=ddp")));
  EXPECT_THAT(errors_of({"logical_shards=4", "threads=1", "deterministic=true"}),
              ElementsAre(HasSubstr("leave out strategy.compression, reducer")));
  EXPECT_THAT(errors_of({"logical_shards=4", "threads=1", "data.sharding=contiguous"}),
              ElementsAre(HasSubstr("leave out data.sharding, or train.logical_shards")));
}

TEST(RecipeCheck, ShardingNeedsClassesAndEqualLocalBatches) {
  EXPECT_THAT(parse("", {"data.sharding=sorted"}).errors,
              ElementsAre(HasSubstr("data.sharding: must be one of shuffled, contiguous, "
                                    "stratified, strict_stratified, not \"sorted\"")));
  EXPECT_EQ(parse("", {"sharding=stratified"}).recipe.train.sharding, data::Sharding::kStratified);
  EXPECT_THAT(errors_of({"data.sharding=strict_stratified"}), IsEmpty());
  const auto text = [](const std::string& sharding) {
    return check_recipe(parse("", {"batch=9", "steps=1", "data.kind=text", "model.kind=gpt",
                                   "data.sharding=" + sharding}),
                        2);
  };
  EXPECT_THAT(text("contiguous"), IsEmpty());
  EXPECT_THAT(text("stratified"), ElementsAre(HasSubstr("a text has no classes to stratify by")));
  EXPECT_THAT(
      text("strict_stratified"),
      ElementsAre(HasSubstr("has no classes"), HasSubstr("9 is no multiple of 2; write batch=8, or "
                                                         "data.sharding=stratified")));
}

TEST(RecipeCheck, BinsAreOfTargetsThatAreNumbers) {
  EXPECT_THAT(parse("", {"data.bins=1"}).errors, ElementsAre(HasSubstr("data.bins")));
  EXPECT_THAT(errors_of({"data.bins=10"}), IsEmpty());
  const auto table = [](const std::string& loss, const std::string& sharding) {
    return check_recipe(
        parse("", {"batch=8", "steps=1", "data.kind=csv", "data.bins=4", "model.kind=mlp",
                   "model.sizes=[2,1]", "loss=" + loss, "data.sharding=" + sharding}),
        2);
  };
  EXPECT_THAT(table("mse", "stratified"), IsEmpty());
  EXPECT_THAT(table("mse", "contiguous"), IsEmpty());
  const auto refused = ElementsAre(
      HasSubstr("data.bins: are ranges of a target that is a number; write train.loss=mse and"));
  EXPECT_THAT(table("cross_entropy", "stratified"), refused);
  EXPECT_THAT(table("mse", "shuffled"), refused);
}

TEST(Recipe, MissingFileIsOneOfTheErrors) {
  const std::vector<std::string> overrides = {"stepz=1"};
  const ParsedRecipe p = load_recipe("no/such/recipe.toml", overrides);
  ASSERT_EQ(p.errors.size(), 2u);
  EXPECT_THAT(p.errors[0], HasSubstr("no/such/recipe.toml does not exist"));
}

TEST(Recipe, SomeKeysMayBeAuto) {
  const std::string text = "[strategy]\nkind = \"parameter_averaging\"\nperiod = \"auto\"\n";
  const ParsedRecipe p = parse(text);
  EXPECT_THAT(p.errors, IsEmpty());
  EXPECT_EQ(p.recipe.open, (OpenKeys{.period = true}));
  EXPECT_EQ(p.recipe.train.strategy.period, kLongestPeriod) << "fragments find room there";
  EXPECT_THAT(to_toml(p.recipe), HasSubstr("period = \"auto\"\n"));
  EXPECT_EQ(parse_recipe(to_toml(p.recipe), "again", ".", {}).recipe.open, p.recipe.open);
  EXPECT_EQ(restore_recipe(to_json(p.recipe), {}).recipe.open, p.recipe.open);
  // what is typed later counts
  EXPECT_EQ(parse(text, {"strategy.period=4"}).recipe.open, OpenKeys());
  EXPECT_EQ(parse(text, {"strategy.period=4"}).recipe.train.strategy.period, 4);
  const ParsedRecipe codec =
      parse("[strategy]\ncompression = \"int8\"\n", {"strategy.compression=auto"});
  EXPECT_EQ(codec.recipe.open, (OpenKeys{.compression = true}));
  EXPECT_EQ(codec.recipe.train.gradients.codec.kind, Codec::kNone);
}

TEST(Recipe, OtherWordsAndOtherKeysAreNotAuto) {
  EXPECT_THAT(parse("", {"strategy.period=aut", "strategy.compression=out", "steps=auto"}).errors,
              testing::UnorderedElementsAre(
                  "command line: strategy.period: must be whole number, or \"auto\", not \"aut\"",
                  testing::AllOf(HasSubstr("strategy.compression: must be one of none, "),
                                 HasSubstr("powersgd, auto, not \"out\"")),
                  "command line: train.steps: must be whole number, not \"auto\""));
  EXPECT_THAT(parse("", {"strategy.period=0"}).errors,
              ElementsAre(HasSubstr("strategy.period: must be at least 1, not 0")));
}

TEST(Recipe, AutoIsRefusedWhereRanksCannotChoose) {
  const auto wrong = [](const std::vector<std::string>& overrides, int ranks = 2) {
    std::vector<std::string> all = {"steps=1", "batch=8", "model.kind=mlp", "model.sizes=784,10"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return check_recipe(parse("", all), ranks);
  };
  const std::string codec = "strategy.compression=auto", period = "strategy.period=auto",
                    averaging = "strategy.kind=parameter_averaging";
  EXPECT_THAT(wrong({codec}), IsEmpty());
  EXPECT_THAT(wrong({averaging, period}), IsEmpty());
  EXPECT_THAT(wrong({averaging, period, "strategy.outer=nesterov", "strategy.fragments=16"}),
              IsEmpty());
  EXPECT_THAT(wrong({averaging, period, codec, "strategy.outer=nesterov"}),
              ElementsAre(HasSubstr("nobody can say which of them loses less")));
  EXPECT_THAT(wrong({"strategy.kind=gossip", codec}),
              ElementsAre(HasSubstr("strategy 'gossip' does not use strategy.compression")));
  EXPECT_THAT(wrong({"strategy.kind=gossip", period}),
              ElementsAre(HasSubstr("\"auto\" is for strategy.kind=parameter_averaging")));
  EXPECT_THAT(wrong({averaging, period, "strategy.max_distance=0.1"}),
              ElementsAre(HasSubstr("adapts a period that is given")));
  EXPECT_THAT(wrong({"strategy.kind=parameter_server", codec}),
              ElementsAre(HasSubstr("workers of servers are none")));
  EXPECT_THAT(wrong({"elastic.enabled=true", codec}),
              ElementsAre(HasSubstr("in elastic training some come later")));
}

}  // namespace
}  // namespace stormo::train
