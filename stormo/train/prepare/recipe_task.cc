#include <stormo/train/prepare/recipe_task.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <malloc.h>
#include <torch/nn/module.h>
#include <torch/utils.h>

#include <algorithm>
#include <optional>

#include <stormo/base/check.h>
#include <stormo/base/rng.h>
#include <stormo/checkpoint/folder.h>
#include <stormo/checkpoint/format/manifest.h>
#include <stormo/data/text/text_windows.h>
#include <stormo/model/generate.h>
#include <stormo/model/gpt.h>
#include <stormo/model/loss.h>
#include <stormo/model/registry.h>
#include <stormo/tensor/memory.h>
#include <stormo/train/recipe/recipe_changes.h>
#include <stormo/train/state/saved_samples.h>

namespace stormo::train {
namespace {

/// Parameters and statistics; counters stay whole numbers. (Module::to() of C++ makes floats of
/// them, which that of Python does not.)
void convert_numbers(torch::nn::Module& module, torch::ScalarType type) {
  for (torch::Tensor& p : module.parameters()) p.set_data(tensor::converted(p, type));
  for (torch::Tensor& b : module.buffers()) {
    if (b.is_floating_point()) b.set_data(b.to(type));
  }
}

/// With the same classes the samples may still be others.
Status check_content(const checkpoint::Manifest& manifest, const std::string& path,
                     const Recipe& recipe, const RecipeData& data,
                     std::span<const std::string> accepted) {
  if (!data.train || recipe.train.strategy.kind == Strategy::Kind::kVertical) return {};
  const std::string before = saved_samples(manifest.state_json);
  const std::string now = describe_samples(*data.train);
  if (before.empty() || before == now) return {};
  if (std::ranges::find(accepted, "data") != accepted.end()) return {};
  return invalid_argument(
      fmt::format("{} was trained on {}, {} now has {}; go on with the old data, say that others "
                  "are meant with --accept-changes data, or begin a new run with its weights: "
                  "--init-from CHECKPOINT",
                  path, before, recipe.data.path, now));
}

}  // namespace

Result<std::string> continue_text(const Task& task, const Preprocessing& preprocessing,
                                  const std::string& prompt, const SampleOptions& options,
                                  std::uint64_t seed) {
  const auto gpt = std::dynamic_pointer_cast<model::Gpt>(task.module);
  STORMO_CHECK(gpt != nullptr && preprocessing.vocabulary, "a language model and its vocabulary");
  const data::Vocabulary& vocabulary = *preprocessing.vocabulary;
  const Result<data::Tokens> tokens = vocabulary.encode(prompt.empty() ? "\n" : prompt);
  if (!tokens.ok() && !prompt.empty()) return tokens.status().within("prompt");
  const data::Tokens start = tokens.ok() ? *tokens : data::Tokens{0};
  Rng rng(seed, "sample");
  const torch::NoGradGuard no_grad;
  const torch::Tensor ids =
      model::generate(*gpt, torch::tensor(start, torch::kInt64), options.length,
                      {.temperature = options.temperature, .top_k = options.top_k}, rng)
          .contiguous();
  return vocabulary.decode(
      std::span(ids.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(ids.numel())));
}

Recipe recipe_of_member(Recipe recipe, Rank rank) {
  const bool has_own = is_population(recipe.train.strategy.kind);
  if (has_own) recipe.train.seed += static_cast<std::uint64_t>(rank);
  return recipe;
}

Result<Task> make_task(const Recipe& recipe, const Preprocessing& data, InitialValues values,
                       std::int64_t kept) {
  model::ModelOptions options = recipe.model;
  if (data.vocabulary) options.vocabulary = data.vocabulary->size();
  if (data.words) options.vocabulary = data.words->size();
  if (data.input.size() == 3) options.image = data.input;
  options.by_columns = recipe.train.strategy.kind == Strategy::Kind::kVertical;
  torch::manual_seed(recipe.train.seed);
  if (values == InitialValues::kWithout) {
    // what segments have while they are made goes back to the system, and leaves no holes
    ::mallopt(M_MMAP_THRESHOLD, 1 << 20);
  }
  std::optional<model::ValuesLater> later;
  if (values != InitialValues::kNow) later.emplace(kept);
  STORMO_ASSIGN_OR_RETURN(const std::shared_ptr<model::Chain> chain, model::make_model(options));
  convert_numbers(*chain, scalar_type(recipe));
  Task task;
  task.module = chain;
  task.forward = [chain](const torch::Tensor& input) { return chain->forward(input); };
  if (recipe.precision == "bfloat16") task.autocast = torch::kBFloat16;
  if (recipe.precision == "float16") task.autocast = torch::kHalf;
  const bool numbers = recipe.loss == "mse";
  task.loss = numbers ? model::mean_squared_error : model::cross_entropy;
  if (numbers) task.target_unit = data.target.stddev;
  if (options.by_columns) {
    task.split_loss = [loss = task.loss, owner = recipe.train.strategy.labels](
                          const torch::Tensor& output, const torch::Tensor& target,
                          const tensor::TensorParallelGroup& ranks) {
      const auto of_output = [&](const torch::Tensor& all) { return loss(all, target); };
      return model::owned_loss(output, of_output, ranks, owner);
    };
  } else if (!numbers) {
    const std::int64_t classes = options.vocabulary;  // only a text's are in parts
    task.split_loss = [classes](const torch::Tensor& part, const torch::Tensor& target,
                                const tensor::TensorParallelGroup& ranks) {
      return model::split_cross_entropy(part, target, classes, &ranks);
    };
  }
  task.shape = chain->shape();
  // How many of the next tokens are guessed says little about a language model.
  if (recipe.model.kind != "gpt" && !numbers) task.correct = model::count_correct;
  if (recipe.model.kind == "gpt" && data.vocabulary && recipe.sample.length > 0) {
    task.sample = [task, data, recipe] {
      return continue_text(task, data, "", recipe.sample, recipe.train.seed).take_or_throw();
    };
  }
  return task;
}

Status check_resume(const ParsedRecipe& parsed, std::span<const std::string> accepted) {
  const Recipe& recipe = parsed.recipe;
  STORMO_ASSIGN_OR_RETURN(const std::string path,
                          checkpoint::newest_checkpoint(recipe.train.checkpoint.directory));
  STORMO_ASSIGN_OR_RETURN(const checkpoint::Manifest manifest,
                          checkpoint::check_checkpoint(path, true));
  // What was imported has no name.
  if (!manifest.name.empty() && manifest.name != recipe.train.name) {
    return invalid_argument(
        fmt::format("{} was written by '{}', this recipe is '{}'; choose the run's own folder with "
                    "--checkpoint DIR",
                    path, manifest.name, recipe.train.name));
  }
  Recipe chosen = recipe;
  keep_choices(chosen, manifest.recipe_json, accepted);
  return check_changes(recipe_changes(manifest.recipe_json, to_json(chosen)), &parsed, accepted)
      .within(path);
}

Status check_same_data(const Recipe& recipe, const RecipeData& data,
                       std::span<const std::string> accepted) {
  const auto path = checkpoint::newest_checkpoint(recipe.train.checkpoint.directory);
  if (!path.ok()) return {};  // check_resume() says so
  STORMO_ASSIGN_OR_RETURN(const checkpoint::Manifest manifest,
                          checkpoint::check_checkpoint(*path, false));
  if (manifest.preprocessing_json == "{}") return {};  // of an import
  STORMO_ASSIGN_OR_RETURN(const Preprocessing a, parse_preprocessing(manifest.preprocessing_json));
  const Preprocessing& b = data.preprocessing;
  std::vector<std::string> other;
  if (a.input != b.input) other.push_back("shape of samples");
  if (a.classes != b.classes) other.push_back("classes");
  if (a.vocabulary != b.vocabulary || a.words != b.words) other.push_back("vocabulary");
  if (a.columns != b.columns) other.push_back("columns");
  if (a.categories != b.categories) other.push_back("categories");
  if (a.fills != b.fills || a.indicators != b.indicators) other.push_back("missing numbers");
  if (a.scales != b.scales || a.target != b.target) other.push_back("mean and standard deviation");
  if (other.empty()) return check_content(manifest, *path, recipe, data, accepted);
  return invalid_argument(
      fmt::format("{} was trained on data with other {} than {} has now; go on with the old data, "
                  "or begin anew "
                  "with --checkpoint DIR",
                  *path, fmt::join(other, ", "), recipe.data.path));
}

}  // namespace stormo::train
