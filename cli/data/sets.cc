#include <cli/data/sets.h>

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <utility>

#include <stormo/base/rng.h>

namespace stormo::cli {
namespace {

/// Normally distributed, of mean 0 and deviation 1 (Box-Muller).
double normal(Rng& rng) {
  const double radius = std::sqrt(-2 * std::log(1 - rng.uniform()));
  return radius * std::cos(2 * 3.14159265358979323846 * rng.uniform());
}

/// Three kinds of leaves, whose sizes overlap.
std::string rows_of_leaves(const char* split, int rows) {
  struct Kind {
    const char* name;
    std::array<double, 4> means;  // of the columns
  };
  static constexpr std::array kinds = {Kind{"birch", {5.2, 3.8, 1.4, 0.3}},
                                       Kind{"oak", {9.8, 5.6, 1.1, 1.9}},
                                       Kind{"willow", {8.9, 1.7, 0.6, 0.5}}};
  static constexpr std::array deviations = {1.1, 0.7, 0.3, 0.4};
  Rng rng(1, std::string("leaves ") + split);
  std::string out = "length,width,stalk,lobes,kind\n";
  for (int i = 0; i < rows; ++i) {
    const Kind& kind = kinds[rng.below(kinds.size())];
    for (std::size_t c = 0; c < deviations.size(); ++c)
      out += fmt::format("{:.2f},", kind.means[c] + deviations[c] * normal(rng));
    out += std::string(kind.name) + "\n";
  }
  return out;
}

template <std::size_t N>
const char* one_of(Rng& rng, const std::array<const char*, N>& words) {
  return words[rng.below(N)];
}

}  // namespace

std::vector<DataFile> make_table() {
  // a recipe of its own, as none of the repository is for this table
  static constexpr const char* kRecipe =
      R"(# Which tree a leaf is from; made by `stormo data fetch table`.
schema_version = 1
name = "leaves"

[model]
kind = "mlp"
sizes = [4, 16, 3]

[data]
kind = "csv"
path = "@recipe"
train = "train.csv"
test = "test.csv"
label = "kind"
standardise = true

[train]
steps = 300
global_batch = 32
log_every = 50

[optimizer]
kind = "adamw"
lr = 1e-2
)";
  return {{"train.csv", rows_of_leaves("train", 600)},
          {"test.csv", rows_of_leaves("test", 150)},
          {"leaves.toml", kRecipe}};
}

std::vector<DataFile> make_text() {
  static constexpr std::array who = {"the miller",  "a sailor",  "my sister", "the old king",
                                     "a young fox", "the baker", "her uncle", "the night watch"};
  static constexpr std::array does = {"carries", "finds",   "hides",   "paints",
                                      "buys",    "forgets", "repairs", "sings of"};
  static constexpr std::array what = {"a red boat",    "the last lamp", "two small bells",
                                      "a bag of corn", "the long road", "a silver key",
                                      "some bread",    "the north wind"};
  static constexpr std::array when = {"in the morning", "before the rain", "when the snow melts",
                                      "at the river",   "without a word",  "for the third time"};
  Rng rng(1, "text");
  std::string text;
  while (text.size() < 200000) {
    std::string line = one_of(rng, who);
    line += std::string(" ") + one_of(rng, does) + " " + one_of(rng, what);
    if (rng.below(3) > 0) line += std::string(" ") + one_of(rng, when);
    line.front() = static_cast<char>(line.front() - 'a' + 'A');
    text += line + (rng.below(6) == 0 ? ".\n\n" : ".\n");
  }
  return {{"sentences.txt", std::move(text)}};
}

std::span<const DataSet> data_sets() {
  static constexpr std::array sets = {
      DataSet{"digits", "7,000 images of digits, 28 x 28, in the form of MNIST",
              "stormo train mnist -n 2 data.path={}", make_digits},
      DataSet{"table", "750 rows of four numbers and a label, as CSV, with a recipe",
              "stormo train {}/leaves.toml -n 2", make_table},
      DataSet{"text", "200,000 characters of plain sentences",
              "stormo train gpt_shakespeare -n 2 data.path={}", make_text}};
  return sets;
}

}  // namespace stormo::cli
