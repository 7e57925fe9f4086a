#include <stormo/train/loop/run_facts.h>

#include <fmt/format.h>

#include <cstdint>
#include <span>
#include <string_view>

#include <ATen/Config.h>
#include <torch/version.h>

#include <stormo/base/rng.h>
#include <stormo/base/version.h>
#include <stormo/checkpoint/file/checked_file.h>
#include <stormo/train/agreement/broadcast.h>
#include <stormo/train/recipe/recipe_schema.h>
#include <stormo/train/state/checkpoint.h>
#include <stormo/train/step/strategy.h>

namespace stormo::train {
namespace {

/// Of the library that was loaded, which need not be the one this was built with.
std::string torch_version() {
  constexpr std::string_view kKey = "TORCH_VERSION=";
  const std::string settings = at::show_config();
  const std::size_t key = settings.find(kKey);
  if (key == std::string::npos) return TORCH_VERSION;
  const std::size_t begin = key + kKey.size();
  return settings.substr(begin, settings.find_first_of(", \n", begin) - begin);
}

std::string hex(std::uint64_t value) { return checkpoint::to_hex(value); }

/// A fact about numbers of samples; none if there are no such numbers.
template <class Number>
void add_numbers(const std::string& name, std::span<const Number> numbers,
                 std::vector<comm::Fact>& facts) {
  if (numbers.empty()) return;
  const auto bytes = std::as_bytes(numbers);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  facts.push_back({name, hex(fnv1a(text))});
}

void add_data(const std::string& name, const data::Dataset* dataset,
              std::vector<comm::Fact>& facts) {
  if (dataset == nullptr) return;
  facts.push_back({name + " samples", std::to_string(dataset->size())});
  const std::uint64_t content = dataset->fingerprint();
  facts.push_back({name + " content", content == 0 ? "unknown" : hex(content)});
  add_numbers(name + " lengths", dataset->lengths(), facts);
}

void add_task(const Task& task, std::vector<comm::Fact>& facts) {
  facts.push_back({"autocast", task.autocast ? c10::toString(*task.autocast) : "none"});
  facts.push_back({"counts right answers", task.correct ? "yes" : "no"});
  const std::vector<comm::Fact> tensors = tensor_facts(named_state(*task.module));
  facts.insert(facts.end(), tensors.begin(), tensors.end());
}

}  // namespace

std::vector<comm::Fact> recipe_facts(const Recipe& recipe) {
  std::vector<comm::Fact> facts;
  for (const RecipeField& field : recipe_fields()) {
    if (!may_differ(field)) {
      facts.push_back({std::string(field.key), format_value(field, recipe)});
    }
  }
  facts.push_back({"resume", recipe.train.resume ? "true" : "false"});
  facts.push_back({"overwrite", recipe.train.overwrite ? "true" : "false"});
  return facts;
}

std::vector<comm::Fact> run_facts(const RunSetup& setup) {
  std::vector<comm::Fact> facts = {{"stormo", kVersion}, {"libtorch", torch_version()}};
  const std::vector<comm::Fact> options = recipe_facts({.train = setup.options});
  facts.insert(facts.end(), options.begin(), options.end());
  facts.push_back({"state is compared in steps", std::to_string(setup.verify_state)});
  facts.push_back({"mean of squares is frozen after step", std::to_string(setup.freeze_after)});
  const GradScalerOptions& scale = setup.options.loss_scale;
  facts.push_back(
      {"loss scale", fmt::format("{} {} {} {}", scale.initial_scale, scale.growth_factor,
                                 scale.backoff_factor, scale.growth_interval)});
  facts.push_back({"preprocessing", hex(fnv1a(setup.options.preprocessing_json))});
  add_data("training data:", setup.train.get(), facts);
  if (data::is_stratified(setup.options.sharding)) {
    const data::SampleLabels labels = setup.train->strata();
    add_numbers("training data: classes", labels.all(), facts);
    add_numbers("training data: labels of each sample", labels.ends(), facts);
  }
  for (const EvalSplit& split : setup.splits) {
    add_data(split.name + " data:", split.dataset.get(), facts);
    facts.push_back({split.name + " data: batch", std::to_string(split.batch)});
  }
  add_task(setup.task, facts);
  if (has_parts(setup.plan)) {  // it is made of a model that all ranks put together
    facts.push_back({"makes a sample", setup.task.sample ? "yes" : "no"});
  }
  facts.push_back({"step plan", fmt::format("{} {}", setup.plan.strategy,
                                            hex(fnv1a(plan::to_text(setup.plan))))});
  return facts;
}

}  // namespace stormo::train
