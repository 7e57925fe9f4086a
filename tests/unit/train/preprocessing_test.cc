#include <stormo/train/prepare/preprocessing.h>

#include <gmock/gmock.h>

#include <stormo/train/recipe/recipe.h>

namespace stormo::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Preprocessing everything() {
  const std::vector<std::string> texts = {"a b a", "caf\xe9 b"};  // no UTF-8: Latin-1
  Preprocessing p;
  p.input = {3, 8, 9};
  p.classes = data::Classes::named({"oak", "\xff", "pine \"x\"\n"});
  p.vocabulary = data::Vocabulary::characters("h\u00e9llo\n").take_or_throw();
  p.words = data::WordVocabulary::of(texts, 100, true);
  p.columns = {"x", "y, z"};
  p.scales = {{.mean = 0.1, .stddev = 1e-3}, {.mean = -1e300, .stddev = 3}};
  p.target = {.mean = 200000, .stddev = 7};
  p.fills = {0.25, -1e300};
  p.indicators = {"x"};
  p.categories = {{"y, z", {"", "Oslo", "caf\xe9"}}};
  return p;
}

TEST(Preprocessing, ComesBackFromJsonToTheByte) {
  const auto read = parse_preprocessing(to_json(everything()));
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(*read, everything());
  EXPECT_EQ(*parse_preprocessing("{}"), Preprocessing());
  Preprocessing numbers;
  numbers.classes = data::Classes::numbers(10);
  numbers.vocabulary = data::Vocabulary::bytes();
  EXPECT_EQ(*parse_preprocessing(to_json(numbers)), numbers);
  EXPECT_EQ(numbers.classes.name(7), "7");
}

TEST(Preprocessing, IsNotTrusted) {
  for (const char* bad : {"",
                          "[]",
                          R"({"input":[-1]})",
                          R"({"input":3})",
                          R"({"classes":-1})",
                          R"({"classes":["b","a"]})",
                          R"({"classes":["a","a"]})",
                          R"({"classes":[1]})",
                          R"({"classes":[{"hex":"f"}]})",
                          R"({"classes":[{"hex":"zz"}]})",
                          R"({"vocabulary":"words"})",
                          R"({"vocabulary":{"characters":""}})",
                          R"({"words":{"list":[]}})",
                          R"({"words":{"pairs":true,"list":["a","a"]}})",
                          R"({"columns":"x"})",
                          R"({"columns":["x"],"scales":[]})",
                          R"({"columns":["x"],"scales":[{"mean":1,"stddev":0}]})",
                          R"({"target":{"mean":1}})",
                          R"({"columns":["x"],"fills":[1,2]})",
                          R"({"columns":["x"],"fills":["a"]})",
                          R"({"columns":["x"],"indicators":["y"]})",
                          R"({"columns":["x"],"categories":[["x"]]})",
                          R"({"columns":["x"],"categories":[["y",["a"]]]})",
                          R"({"columns":["x"],"categories":[["x",[]]]})",
                          R"({"columns":["x"],"categories":[["x",["b","a"]]]})"}) {
    EXPECT_EQ(parse_preprocessing(bad).status().code(), Code::kCorrupt) << bad;
  }
}

TEST(RestoredRecipe, IsTheOneThatWasKept) {
  const ParsedRecipe kept = parse_recipe(
      "schema_version = 1\nname = \"r\"\n[data]\nmean = [0.5, 1]\n[train]\nglobal_batch = 4\n",
      "r.toml", ".", {});
  ASSERT_THAT(kept.errors, IsEmpty());
  const ParsedRecipe back = restore_recipe(to_json(kept.recipe), {});
  EXPECT_THAT(back.errors, IsEmpty());
  EXPECT_EQ(to_json(back.recipe), to_json(kept.recipe));
  EXPECT_THAT(back.recipe.data.mean, ElementsAre(0.5, 1));
  const std::vector<std::string> overrides = {"data.path=elsewhere", "nothing=1"};
  const ParsedRecipe other = restore_recipe(to_json(kept.recipe), overrides);
  EXPECT_EQ(other.recipe.data.path, "elsewhere");
  EXPECT_THAT(other.errors, ElementsAre(HasSubstr("nothing")));
  EXPECT_THAT(restore_recipe(R"({"train":{"new":1}})", {}).errors,
              ElementsAre(HasSubstr("the version of Stormo that wrote it")));
  EXPECT_THAT(restore_recipe("[", {}).errors, ElementsAre(HasSubstr("no JSON object")));
}

}  // namespace
}  // namespace stormo::train
