#include <stormo/data/table/table.h>

#include <gmock/gmock.h>

#include <cmath>

#include <stormo/data/classes.h>
#include <stormo/data/text/word_vocabulary.h>

#include "mutate.h"
#include "scratch.h"

namespace stormo::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TableTest : public ::testing::Test {
 protected:
  Result<Table> read(std::string_view text, const TableOptions& options = {}) {
    return read_table(scratch_.write("t.csv", text), options);
  }
  std::string message(std::string_view text, const TableOptions& options = {}) {
    const Status status = read(text, options).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    return status.message();
  }
  Scratch scratch_;
};

TEST_F(TableTest, ReadsNumbersAndTheLabelByNameOrNumber) {
  const std::string text = "a,kind,b\n1,cat,-2.5\n3e2, dog,+4 \r\n\n5,\"a \"\"cat\"\", old\",6\n";
  for (const char* label : {"kind", "1"}) {
    const auto table = read(text, {.label = label});
    ASSERT_TRUE(table.ok()) << table.status().to_string();
    EXPECT_EQ(table->columns.size(), 2u);
    EXPECT_THAT(table->features, ElementsAre(1, -2.5, 300, 4, 5, 6));
    EXPECT_THAT(table->labels, ElementsAre("cat", " dog", "a \"cat\", old"));
  }
  const auto last = read("1\t2\n3\t4", {.form = {.separator = '\t', .header = false}});
  ASSERT_TRUE(last.ok());
  EXPECT_THAT(last->features, ElementsAre(1, 3));
  EXPECT_THAT(last->labels, ElementsAre("2", "4"));
  EXPECT_THAT(read("\xef\xbb\xbfx,y\n1,2\n", {.label = "x"})->labels, ElementsAre("1"));
}

TEST_F(TableTest, NamesFileLineAndRemedy) {
  EXPECT_THAT(message("a,b\n1,2\n\n1,2,3\n"),
              AllOf(HasSubstr("t.csv:4: "), HasSubstr("3 fields, the first line has 2")));
  EXPECT_THAT(message("a,b\n1,x\nnan,y\n"),
              AllOf(HasSubstr("t.csv:3: a: \"nan\" is no finite number")));
  for (const char* bad : {"", "1.5x", "1,5", "0x10", "inf", "1e999", "--1"}) {
    EXPECT_THAT(message("a\tb\n" + std::string(bad) + "\ty\n", {.form = {.separator = '\t'}}),
                HasSubstr("is no finite number"))
        << bad;
  }
  EXPECT_THAT(message("a,b\n1,\"x\n"), HasSubstr("t.csv:2: the quotes of field 1 do not end"));
  EXPECT_THAT(message("a,b\n1,\"x\"y\n"), HasSubstr("the quotes of field 1"));
  EXPECT_THAT(message("a,b\n1,2\n", {.label = "c"}),
              AllOf(HasSubstr("data.label \"c\""), HasSubstr("a, b")));
  EXPECT_THAT(message("1,2\n", {.form = {.header = false}, .label = "2"}),
              HasSubstr("columns 0 to 1"));
  EXPECT_THAT(message("a\n1\n"), HasSubstr("one column only"));
  EXPECT_THAT(message("a,b\n"), HasSubstr("no rows"));
  EXPECT_THAT(message("\n\n"), HasSubstr("empty"));
  EXPECT_EQ(read_table(scratch_.path("none"), {}).status().code(), Code::kNotFound);
}

TEST_F(TableTest, TakesTheColumnsThatAreNamed) {
  const auto table =
      read("a,kind,b,c\n1,x,?,3\n4,y,?,6\n", {.label = "kind", .columns = {"c", "0"}});
  ASSERT_TRUE(table.ok()) << table.status().to_string();
  EXPECT_THAT(table->columns, ElementsAre("c", "a"));
  EXPECT_THAT(table->features, ElementsAre(3, 1, 6, 4));
  EXPECT_THAT(table->lines, ElementsAre(2, 3));
  EXPECT_THAT(message("a,b,c\n1,2,3\n", {.columns = {"x", "a", "y"}}),
              AllOf(HasSubstr("no column \"x\", \"y\""), HasSubstr("a, b, c")));
  EXPECT_THAT(message("a,b,c\n1,2,3\n", {.columns = {"a", "0"}}), HasSubstr("twice"));
  EXPECT_THAT(message("a,b,c\n1,2,3\n", {.columns = {"a", "c"}}), HasSubstr("is the label"));
  EXPECT_THAT(message("a,a,c\n1,2,3\n"), HasSubstr("two columns are named \"a\""));
}

TEST_F(TableTest, TakesWhatIsTooSmallForADoubleForZero) {
  const auto table = read("a,b\n1e-400,x\n-1e-5000,y\n1e-310,z\n");
  ASSERT_TRUE(table.ok()) << table.status().to_string();
  EXPECT_THAT(table->features, ElementsAre(0, 0, 1e-310));
  EXPECT_THAT(message("a,b\n-1e400,x\n"), HasSubstr("is no finite number"));
  EXPECT_THAT(message("a,b\n1e-400x,x\n"), HasSubstr("is no finite number"));
}

TEST_F(TableTest, ARowWithoutALabelIsNoClass) {
  EXPECT_THAT(message("a,b\n1,x\n2, \n"), HasSubstr("t.csv:3: b: the label is missing"));
  EXPECT_THAT(message("a,b\n1,\n", {.may_be_missing = true}), HasSubstr("label is missing"));
}

TEST_F(TableTest, KnowsMissingNumbersWhereTheyAreAllowed) {
  const std::string text = "a,b\n,x\n?,x\nNA,x\n n/a ,x\nNaN,x\nnull,x\nNone,x\n7,x\n";
  const auto table = read(text, {.may_be_missing = true});
  ASSERT_TRUE(table.ok()) << table.status().to_string();
  ASSERT_EQ(table->features.size(), 8u);
  for (std::size_t i = 0; i < 7; ++i) EXPECT_TRUE(std::isnan(table->features[i])) << i;
  EXPECT_EQ(table->features[7], 7);
  EXPECT_THAT(message(text), AllOf(HasSubstr("t.csv:2: a: \"\""), HasSubstr("data.missing")));
  EXPECT_THAT(message("a,b\ninf,x\n", {.may_be_missing = true}), HasSubstr("no finite number"));
}

TEST_F(TableTest, ReadsColumnsOfTexts) {
  const std::string text = "city,a,label\nRome,1,x\nOslo,2,y\nRome,3,x\n";
  const auto table = read(text, {.categories = {"city"}});
  ASSERT_TRUE(table.ok()) << table.status().to_string();
  EXPECT_THAT(table->features, ElementsAre(0, 1, 1, 2, 0, 3));
  EXPECT_THAT(table->texts, ElementsAre(ElementsAre("Rome", "Oslo"), ElementsAre()));
  EXPECT_THAT(message(text), AllOf(HasSubstr("city: \"Rome\""), HasSubstr("data.categories")));
  EXPECT_THAT(message(text, {.categories = {"town"}}), HasSubstr("data.categories names \"town\""));
  EXPECT_THAT(message(text, {.categories = {"label"}}), HasSubstr("that is no feature"));
  std::string many = "id,label\n";
  for (int i = 0; i <= 10'000; ++i) many += "n" + std::to_string(i) + ",x\n";
  EXPECT_THAT(message(many, {.categories = {"id"}}), HasSubstr("more than 10000 different texts"));
}

TEST_F(TableTest, LeavesColumnsOut) {
  const std::string text = "name,a,b,label\nAnn,1,2,x\nBob,3,4,y\n";
  const auto table = read(text, {.exclude = {"name", "2"}});
  ASSERT_TRUE(table.ok()) << table.status().to_string();
  EXPECT_THAT(table->columns, ElementsAre("a"));
  EXPECT_THAT(table->features, ElementsAre(1, 3));
  EXPECT_THAT(message(text, {.exclude = {"nam"}}), HasSubstr("data.exclude names \"nam\""));
  EXPECT_THAT(message(text, {.exclude = {"label"}}), HasSubstr("which is the label"));
  EXPECT_THAT(message(text, {.exclude = {"name", "a", "b"}}), HasSubstr("no columns of features"));
}

TEST_F(TableTest, SelectsRows) {
  const auto table =
      read("id,c,a,label\n7,u,1,x\n8,v,2,y\n9,u,3,z\n", {.categories = {"c"}, .id = "id"});
  ASSERT_TRUE(table.ok()) << table.status().to_string();
  const Table some = select_rows(*table, std::vector<std::int64_t>{2, 0});
  EXPECT_THAT(some.features, ElementsAre(0, 3, 0, 1));
  EXPECT_THAT(some.labels, ElementsAre("z", "x"));
  EXPECT_THAT(some.lines, ElementsAre(4, 2));
  EXPECT_THAT(some.ids, ElementsAre("9", "7"));
  EXPECT_EQ(some.texts, table->texts);
}

TEST_F(TableTest, NeedsNoLabelToBePredicted) {
  const TableOptions named{.columns = {"a", "b"}, .labelled = false};
  EXPECT_THAT(read("b,a\n1,2\n", named)->features, ElementsAre(2, 1));
  EXPECT_THAT(read("b,kind,a\n1,x,2\n", named)->features, ElementsAre(2, 1));
  TableOptions numbered{.form = {.header = false}, .columns = {"0", "2"}, .labelled = false};
  EXPECT_THAT(read("1,x,2\n", numbered)->features, ElementsAre(1, 2));
  EXPECT_THAT(read("1,2\n", numbered)->features, ElementsAre(1, 2));
  numbered.categories = {"2"};
  for (const char* text : {"1,x,a\n", "1,a\n"}) {
    const auto table = read(text, numbered);
    ASSERT_TRUE(table.ok()) << table.status().to_string();
    EXPECT_THAT(table->texts, ElementsAre(ElementsAre(), ElementsAre("a")));
  }
  numbered.categories.clear();
  numbered.columns = {"1"};
  EXPECT_THAT(read("5\n6\n", numbered)->features, ElementsAre(5, 6));
}

TEST_F(TableTest, SurvivesMutations) {
  const std::string text = "a,kind,b\n1,cat,-2.5\n3e2,\"d,og\",+4\r\n5,\"a \"\"cat\"\"\",6\n";
  int read_whole = 0;
  for (std::uint64_t seed = 0; seed < 600; ++seed) {
    const auto table = read(mutate(text, seed), {.label = "1"});
    if (!table.ok()) continue;
    ++read_whole;
    ASSERT_EQ(std::ssize(table->features), std::ssize(table->labels) * std::ssize(table->columns));
    for (const double value : table->features) ASSERT_TRUE(std::isfinite(value));
  }
  EXPECT_GT(read_whole, 60);
  EXPECT_LT(read_whole, 540);
}

TEST_F(TableTest, ReadsTextsOfTwoColumnsWithoutQuotes) {
  const std::string path = scratch_.write("t.tsv", "a \"film\t1\nno , thanks\t0\n");
  const auto texts = read_labelled_texts(path, {.separator = '\t', .header = false}, "");
  ASSERT_TRUE(texts.ok()) << texts.status().to_string();
  EXPECT_THAT(texts->texts, ElementsAre("a \"film", "no , thanks"));
  EXPECT_THAT(texts->labels, ElementsAre("1", "0"));
  const auto swapped = read_labelled_texts(path, {.separator = '\t', .header = false}, "0");
  EXPECT_THAT(swapped->texts, ElementsAre("1", "0"));
  const std::string three = scratch_.write("3.tsv", "a\tb\tc\n");
  EXPECT_THAT(
      read_labelled_texts(three, {.separator = '\t', .header = false}, "").status().message(),
      HasSubstr("3 columns"));
}

TEST(Classes, AreTheNumbersOrTheSortedTexts) {
  const auto numbers = Classes::of(std::vector<std::string>{"0", "3", "1"});
  EXPECT_EQ(numbers.size(), 4);
  EXPECT_EQ(*numbers.find("2"), 2);
  EXPECT_THAT(numbers.find("4").status().message(), HasSubstr("classes 0 to 3"));
  EXPECT_FALSE(numbers.find("x").ok());
  for (const char* odd : {"01", "-1", "1.0", "+1", "99999999999999999999", ""}) {
    EXPECT_EQ(Classes::of(std::vector<std::string>{"7", odd}).size(), 2) << odd;
  }
  const auto texts = Classes::of(std::vector<std::string>{"pine", "oak", "pine"});
  EXPECT_EQ(texts.size(), 2);
  EXPECT_EQ(*texts.find("oak"), 0);
  EXPECT_EQ(*texts.find("pine"), 1);
  EXPECT_THAT(texts.find("elm").status().message(), HasSubstr("has oak, pine"));
}

TEST(WordVocabulary, CountsWordsAndCapsTheirNumber) {
  const std::vector<std::string> texts = {"b a  c", "a\tb d", " b "};
  const auto all = WordVocabulary::of(texts, 100);
  EXPECT_EQ(all.size(), 6);  // b a c d, padding, unknown
  EXPECT_THAT(all.encode("b a c d x", 9), ElementsAre(2, 3, 4, 5, WordVocabulary::kUnknown));
  const auto two = WordVocabulary::of(texts, 2);
  EXPECT_EQ(two.size(), 4);
  EXPECT_THAT(two.encode("d a b c", 3), ElementsAre(1, 3, 2));
  EXPECT_THAT(two.encode(" \n", 3), ElementsAre(WordVocabulary::kUnknown));
}

TEST(WordVocabulary, TakesPairsOfNeighboursOnRequest) {
  const std::vector<std::string> texts = {"not good", "good"};
  const auto pairs = WordVocabulary::of(texts, 100, true);  // good: 2, not: 3, not good: 4
  EXPECT_EQ(pairs.size(), 5);
  EXPECT_THAT(pairs.encode("not good", 9), ElementsAre(3, 2, 4));
  EXPECT_THAT(pairs.encode("good not good", 9), ElementsAre(2, 3, 2, 1, 4));
  EXPECT_THAT(pairs.encode("good not good", 4), ElementsAre(2, 3, 2, 1));
  EXPECT_THAT(pairs.encode("good", 9), ElementsAre(2));
}

TEST_F(TableTest, AnIdSortsTheRowsAndIsNoFeature) {
  const std::string text = "x,who,y,kind\n1,c,2,u\n3,a,4,v\n5,b,6,w\n";
  const auto table = read(text, {.id = "who"});
  ASSERT_TRUE(table.ok()) << table.status().to_string();
  EXPECT_THAT(table->columns, ElementsAre("x", "y"));
  EXPECT_THAT(table->features, ElementsAre(3, 4, 5, 6, 1, 2));
  EXPECT_THAT(table->labels, ElementsAre("v", "w", "u"));
  EXPECT_THAT(table->ids, ElementsAre("a", "b", "c"));
  EXPECT_THAT(table->lines, ElementsAre(3, 4, 2));
  EXPECT_THAT(message("x,who,kind\n1,c,2\n3,a,4\n5,c,6\n", {.id = "who"}),
              HasSubstr("t.csv: lines 2 and 4 have the same value of data.id, \"c\""));
  EXPECT_THAT(message(text, {.id = "kind"}), HasSubstr("data.id \"kind\" is the label"));
  EXPECT_THAT(message(text, {.id = "nobody"}), HasSubstr("data.id \"nobody\" is no column"));
}

TEST_F(TableTest, ARankTakesItsShareOfTheFeaturesAndNoLabels) {
  TableOptions options{.label = "kind", .keeps_labels = false};
  std::size_t features = 0;
  options.share = [&](std::size_t n) -> Result<std::pair<std::size_t, std::size_t>> {
    features = n;
    return std::pair<std::size_t, std::size_t>(1, 2);
  };
  // what it does not take may be anything
  const auto table = read("x,kind,y,z,q\nno,1,2,3,number\n", options);
  ASSERT_TRUE(table.ok()) << table.status().to_string();
  EXPECT_EQ(features, 4u);
  EXPECT_THAT(table->columns, ElementsAre("y", "z"));
  EXPECT_THAT(table->features, ElementsAre(2, 3));
  EXPECT_TRUE(table->labels.empty());
  options.share = [](std::size_t) -> Result<std::pair<std::size_t, std::size_t>> {
    return invalid_argument("too few");
  };
  EXPECT_THAT(message("x,kind\n1,2\n", options), HasSubstr("t.csv:1: too few"));
}

TEST_F(TableTest, OneOfSeveralHasSomeOfTheColumnsAndPerhapsTheLabel) {
  TableOptions options{.label = "kind",
                       .columns = {"y", "elsewhere", "x"},
                       .labelled = false,
                       .one_of_several = true};
  const auto part = read("x,q,y\n1,2,3\n", options);
  ASSERT_TRUE(part.ok()) << part.status().to_string();
  EXPECT_THAT(part->columns, ElementsAre("y", "x"));
  EXPECT_THAT(message("x,kind\n1,2\n", options), HasSubstr("is the label, which another part has"));
  EXPECT_THAT(message("q\n1\n", options), HasSubstr("no columns of features are left"));
}

TEST_F(TableTest, JoinsColumnsOfTheSameRows) {
  const auto part = [&](std::string_view text, bool labelled) {
    return *read(text, {.labelled = labelled, .id = "who"});
  };
  const Table a = part("who,x,y\n2,3,4\n1,5,6\n", false);
  const Table b = part("z,who,kind\n7,1,u\n8,2,v\n", true);
  const auto joined = join_tables({a, b});
  ASSERT_TRUE(joined.ok()) << joined.status().to_string();
  EXPECT_THAT(joined->columns, ElementsAre("x", "y", "z"));
  EXPECT_THAT(joined->features, ElementsAre(5, 6, 7, 3, 4, 8));
  EXPECT_THAT(joined->labels, ElementsAre("u", "v"));
  EXPECT_THAT(join_tables({a, part("z,who,kind\n7,1,u\n8,3,v\n", true)}).status().message(),
              HasSubstr("rows with other values of data.id"));
  EXPECT_THAT(join_tables({a, part("z,who,kind\n7,1,u\n", true)}).status().message(),
              HasSubstr("a part has 1 rows, the first one 2"));
  EXPECT_THAT(join_tables({a, part("y,who,kind\n7,1,u\n8,2,v\n", true)}).status().message(),
              HasSubstr("two parts have a column \"y\""));
}

TEST_F(TableTest, AnIdIsNoFeatureThatIsNamed) {
  EXPECT_THAT(read("who,x,y\n2,3,4\n", {.columns = {"who", "x"}, .id = "who"}).status().message(),
              HasSubstr("data.columns names \"who\", which is data.id and no feature"));
}

}  // namespace
}  // namespace stormo::data
