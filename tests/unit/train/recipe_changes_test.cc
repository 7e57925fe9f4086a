#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stormo/train/recipe/recipe_changes.h>
#include <stormo/train/recipe/recipe_schema.h>
#include <stormo/train/recipe/toml_depth.h>

namespace stormo::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

ParsedRecipe recipe_of(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return parse_recipe("schema_version = 1\n" + text, "r.toml", ".", overrides);
}

std::vector<RecipeChange> changes(const std::string& before, const std::string& now) {
  return recipe_changes(to_json(recipe_of(before).recipe), to_json(recipe_of(now).recipe));
}

TEST(RecipeChanges, EachKeyHasARule) {
  for (const RecipeField& field : recipe_fields()) {
    const OnResume rule = on_resume(field.key);
    const bool of_the_model = field.key.starts_with("model.");
    EXPECT_EQ(rule == OnResume::kRefused,
              of_the_model || field.key == "name" || field.key == "precision")
        << field.key;
  }
  for (const char* key : {"train.seed", "train.global_batch", "train.loss", "train.clip_norm",
                          "optimizer.kind", "learning_rate.warmup_steps", "data.tokens"}) {
    EXPECT_EQ(on_resume(key), OnResume::kNamed) << key;
  }
  for (const char* key : {"threads", "train.log_every", "checkpoint.every", "strategy.pipeline"}) {
    EXPECT_EQ(on_resume(key), OnResume::kFree) << key;
  }
}

TEST(RecipeChanges, AreTheKeysThatDiffer) {
  EXPECT_THAT(changes("", ""), IsEmpty());
  const auto found =
      changes("[optimizer]\nlr = 0.5\n[train]\nseed = 3\n", "[optimizer]\nlr = 0.25\n");
  ASSERT_THAT(found, SizeIs(2));
  EXPECT_EQ(found[0].key, "train.seed");
  EXPECT_EQ(found[0].before, "3");
  EXPECT_EQ(found[0].now, "1");
  EXPECT_EQ(found[1].before, "0.5");
  // what an older program did not write has its default
  const std::string now = to_json(recipe_of("").recipe);
  EXPECT_THAT(recipe_changes(R"({"train":{"seed":1}})", now), IsEmpty());
  EXPECT_THAT(recipe_changes("{}", now), IsEmpty()) << "of an import";
}

/// A whole recipe with these keys of its strategy.
Recipe with_strategy(const std::string& keys) {
  return recipe_of("[train]\nsteps = 1\nglobal_batch = 1\n[strategy]\n" + keys).recipe;
}

/// As keep_choices() leaves `now`, of which a checkpoint has `saved`.
Recipe kept(const std::string& now, const std::string& saved,
            const std::vector<std::string>& accepted = {}) {
  Recipe recipe = with_strategy(now);
  keep_choices(recipe, to_json(with_strategy(saved)), accepted);
  return recipe;
}

TEST(KeptChoices, AreThoseOfTheCheckpointUnlessTheyAreGivenUp) {
  const std::string open = "compression = \"auto\"\n", saved = "compression = \"int8\"\n";
  const Recipe recipe = kept(open, saved);
  EXPECT_FALSE(recipe.open.any());
  EXPECT_EQ(recipe.train.gradients.codec.kind, Codec::kInt8);
  EXPECT_THAT(recipe.train.recipe_json, HasSubstr(R"("compression":"int8")"));
  for (const char* accepted : {"strategy.compression", "strategy"}) {
    EXPECT_TRUE(kept(open, saved, {accepted}).open.compression);
  }
  EXPECT_FALSE(kept(open, saved, {"strategy.period"}).open.any());
  // what was chosen does not use the density that others would have
  EXPECT_EQ(kept(open + "density = 0.5\n", saved).train.gradients.codec.density, Codec().density);
  EXPECT_EQ(kept(open + "density = 0.5\n", "compression = \"top_k\"\ndensity = 0.5\n")
                .train.gradients.codec,
            Codec(Codec::kTopK, 0.5));
}

TEST(KeptChoices, AreOfOpenKeysOnly) {
  EXPECT_EQ(kept("compression = \"sign\"\n", "compression = \"int8\"\n").train.gradients.codec.kind,
            Codec::kSign);
  const Recipe recipe = kept("kind = \"parameter_averaging\"\nperiod = \"auto\"\n",
                             "kind = \"parameter_averaging\"\nperiod = 32\n");
  EXPECT_FALSE(recipe.open.any());
  EXPECT_EQ(recipe.train.strategy.period, 32);
  EXPECT_TRUE(kept("kind = \"parameter_averaging\"\nperiod = \"auto\"\n", "").open.period)
      << "ddp has none";
}

TEST(KeptChoices, ThatACheckpointLacksStayOpen) {
  for (const char* saved : {"{}", "no json", R"({"strategy":{"kind":"ddp"}})"}) {
    Recipe recipe = with_strategy("compression = \"auto\"\n");
    keep_choices(recipe, saved, {});
    EXPECT_TRUE(recipe.open.compression) << saved;
  }
}

// A checkpoint of before has the key that strategy.compression was then.
TEST(RecipeChanges, AFormerKeyIsTheOneOfNow) {
  const std::string now = to_json(recipe_of("[strategy]\ncompression = \"bfloat16\"\n").recipe);
  EXPECT_THAT(recipe_changes(R"({"strategy":{"reduce_type":"bfloat16"}})", now), IsEmpty());
  const auto found = recipe_changes(R"({"strategy":{"reduce_type":"own"}})", now);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].key, "strategy.compression");
  EXPECT_EQ(found[0].before, "\"none\"");
  for (const auto& [former, codec] :
       {std::pair{"own", Codec::kNone}, {"float16", Codec::kFloat16}}) {
    const ParsedRecipe restored = restore_recipe(
        std::string(R"({"schema_version":1,"strategy":{"reduce_type":")") + former + "\"}}", {});
    EXPECT_THAT(restored.errors, IsEmpty());
    EXPECT_EQ(restored.recipe.train.gradients.codec, codec);
  }
}

TEST(RecipeChanges, StrategiesThatAverageInEachStepTrainAlike) {
  const auto rule = [](const std::string& before, const std::string& now) {
    return changes("[strategy]\n" + before, "[strategy]\n" + now).front().rule;
  };
  EXPECT_EQ(rule("kind = 'ddp'", "kind = 'fsdp'"), OnResume::kFree);
  EXPECT_EQ(rule("kind = 'ddp'", "kind = 'parameter_server'"), OnResume::kNamed);
  EXPECT_EQ(rule("schedule = '1f1b'", "schedule = 'zero_bubble'"), OnResume::kFree);
  EXPECT_EQ(rule("schedule = '1f1b'", "schedule = 'pipedream'"), OnResume::kNamed);
  const auto with_kind = changes("[strategy]\nkind = 'parameter_server'\npolicy = 'sync'", "");
  ASSERT_THAT(with_kind, SizeIs(2));
  EXPECT_EQ(with_kind[1].rule, OnResume::kFree) << "it belongs to the other kind";
}

TEST(RecipeChanges, AreNamedOnTheCommandLineOrAccepted) {
  const std::string before = to_json(recipe_of("").recipe);
  const auto status = [&](const std::string& text, const std::vector<std::string>& overrides,
                          const std::vector<std::string>& accepted) {
    const ParsedRecipe now = recipe_of(text, overrides);
    return check_changes(recipe_changes(before, to_json(now.recipe)), &now, accepted);
  };
  const std::string other = "[train]\nseed = 2\n[optimizer]\nlr = 0.5\nkind = 'adamw'\n";
  EXPECT_THAT(status(other, {}, {}).message(),
              AllOf(HasSubstr("train.seed was 1, the recipe now says 2"),
                    HasSubstr("--accept-changes train.seed,optimizer.kind,optimizer.lr")));
  EXPECT_THAT(status(other, {"seed=2"}, {"optimizer.lr"}).message(),
              AllOf(HasSubstr("--accept-changes optimizer.kind"), Not(HasSubstr("train.seed"))));
  EXPECT_TRUE(status(other, {"seed=2"}, {"optimizer"}).ok());
  EXPECT_FALSE(status(other, {"seed=2"}, {"opt"}).ok());
  EXPECT_THAT(status("precision = 'float64'", {"precision=float64"}, {"precision"}).message(),
              AllOf(HasSubstr("it has precision \"float32\""), HasSubstr("--init-from")));
}

TEST(RecipeDepth, LimitsPartsOfKeysAndValuesInEachOther) {
  const auto message = [](const std::string& text) { return check_toml_depth(text).message(); };
  std::string key = "a";
  for (int part = 1; part < 32; ++part) key += " . a";
  EXPECT_EQ(message(key + " = 1\n[" + key + "]\n" + key + " = [[1.5, 2.5], {x.y = 1}]\n"), "");
  EXPECT_THAT(message("\n\n" + key + ".a = 1\n"), HasSubstr("3: a key of more than 32 parts"));
  EXPECT_THAT(message("[" + key + ".\"q.q\"]\n"), HasSubstr("1: a key"));
  EXPECT_THAT(message("x = " + std::string(33, '[')), HasSubstr("lists and tables"));
  EXPECT_EQ(message("x = " + std::string(32, '[') + std::string(32, ']')), "");
  // not in texts and comments
  const std::string dots(100, '.'), open(100, '{');
  for (const std::string& text :
       {"# " + dots + open, "x = '" + dots + open + "'", "x = \"\\\"" + dots + open + "\"",
        "x = \"\"\"\n" + dots + "\"\n" + open + "\"\"\"\n",
        "x = '''\n" + dots + "'\n" + open + "'''"}) {
    EXPECT_EQ(message(text + "\ny = 1"), "") << text;
  }
  EXPECT_THAT(message("x = '" + dots + "\n" + open), HasSubstr("2: more")) << "it has no end";
}

TEST(RecipeDepth, IsLookedAtBeforeTheText) {
  std::string deep = "a";
  for (int i = 0; i < 50000; ++i) deep += ".a";
  for (const std::string& text : {deep + " = 1\n", "[" + deep + "]\n", "[[" + deep + "]]\n"}) {
    const ParsedRecipe p = recipe_of(text);
    EXPECT_FALSE(p.readable);
    ASSERT_THAT(p.errors, SizeIs(1));
    EXPECT_THAT(p.errors[0], HasSubstr("r.toml:2: a key of more than 32 parts"));
  }
  const std::string nested = std::string(100000, '[') + std::string(100000, ']');
  EXPECT_THAT(restore_recipe("{\"model\":{\"sizes\":" + nested + "}}", {}).errors, SizeIs(1));
}

TEST(RecipeErrors, AreShortAndFew) {
  std::string many = "[train]\n";
  for (int i = 0; i < 5000; ++i) many += "k" + std::to_string(i) + " = 1\n";
  const ParsedRecipe p = recipe_of(many);
  ASSERT_THAT(p.errors, SizeIs(51));
  EXPECT_EQ(p.errors.back(), "r.toml: and 4950 more");
  const std::string lengthy(500000, 'x');
  for (const ParsedRecipe& wrong :
       {recipe_of(lengthy + " = 1\n"), recipe_of("precision = '" + lengthy + "'\n"),
        recipe_of("", {lengthy + "=1"}), recipe_of("", {"precision=" + lengthy}),
        recipe_of("", {lengthy})}) {
    ASSERT_THAT(wrong.errors, SizeIs(1));
    EXPECT_LT(wrong.errors[0].size(), 400u);
  }
}

TEST(RecipeDefaults, ClipWhereMomentumCouldThrowAModelOff) {
  const auto clip = [](const std::vector<std::string>& overrides) {
    return recipe_of("", overrides).recipe.train.clip_norm;
  };
  EXPECT_EQ(clip({}), 0);
  EXPECT_EQ(clip({"model.kind=cnn"}), 0);
  EXPECT_EQ(clip({"momentum=0.9"}), 0) << "an mlp";
  EXPECT_EQ(clip({"model.kind=cnn", "momentum=0.9"}), 1);
  EXPECT_EQ(clip({"model.kind=resnet20", "momentum=0.9"}), 1);
  EXPECT_EQ(clip({"model.kind=cnn", "momentum=0.9", "clip_norm=0"}), 0);
  EXPECT_EQ(clip({"model.kind=cnn", "momentum=0.9", "learning_rate.warmup_steps=10"}), 0);
  EXPECT_EQ(clip({"model.kind=cnn", "momentum=0.9", "optimizer.kind=lars"}), 0);
  EXPECT_EQ(clip({"model.kind=cnn", "momentum=0.9", "strategy.pipeline=2"}), 1);
  EXPECT_EQ(
      clip({"model.kind=cnn", "momentum=0.9", "strategy.pipeline=2", "strategy.schedule=ddg"}), 0);
}

}  // namespace
}  // namespace stormo::train
