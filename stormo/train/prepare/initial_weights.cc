#include <stormo/train/prepare/initial_weights.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <set>
#include <utility>

#include <stormo/checkpoint/folder.h>
#include <stormo/checkpoint/reader.h>
#include <stormo/train/state/checkpoint.h>

namespace stormo::train {
namespace {

constexpr const char* kKey = "train.init_from";

bool is_of(const std::string& name, const std::string& part) {
  return name == part || name.starts_with(part + ".");
}

/// "conv1" of "conv1.weight".
std::string module_of(const std::string& name) { return name.substr(0, name.rfind('.')); }

/// How the tensors of a model and of a checkpoint fit together.
struct Fit {
  std::vector<std::string> taken, anew, unused;
  std::vector<std::string> wrong;       ///< lines
  std::set<std::string> wrong_modules;  ///< whose tensors these are
};

Fit fit_of(const TensorMap& model, const checkpoint::Manifest& saved, const InitOptions& init) {
  Fit fit;
  const auto is_anew = [&init](const std::string& name) {
    return std::ranges::any_of(init.anew, [&](const auto& part) { return is_of(name, part); });
  };
  for (const auto& [name, tensor] : model) {
    const auto found = saved.tensors.find(name);
    if (is_anew(name)) {
      fit.anew.push_back(name);
    } else if (found != saved.tensors.end() && tensor.sizes() == found->second.shape) {
      fit.taken.push_back(name);
    } else {
      const std::string there =
          found == saved.tensors.end()
              ? "is not there"
              : fmt::format("is [{}] there", fmt::join(found->second.shape, ", "));
      fit.wrong.push_back(
          fmt::format("  {} {}, [{}] here", name, there, fmt::join(tensor.sizes(), ", ")));
      fit.wrong_modules.insert(module_of(name));
    }
  }
  for (const auto& [name, tensor] : saved.tensors) {
    if (!is_optimizer_state(name) && !model.contains(name)) fit.unused.push_back(name);
  }
  return fit;
}

Result<checkpoint::CheckpointReader> open(const Recipe& recipe) {
  const auto path = checkpoint::find_checkpoint(recipe.init.from);
  if (!path.ok()) return path.status().within(kKey);
  auto reader = checkpoint::CheckpointReader::open(*path);
  return reader.ok() ? std::move(reader) : reader.status().within(kKey);
}

/// Of tables; the names of others say nothing.
std::string other_columns(const checkpoint::Manifest& manifest, const Preprocessing& data) {
  const auto before = parse_preprocessing(manifest.preprocessing_json);
  if (!before.ok() || before->columns.empty() || before->columns == data.columns) return "";
  return fmt::format("its columns were {}, those of these data are {}",
                     fmt::join(before->columns, ", "), fmt::join(data.columns, ", "));
}

Status check(const Fit& fit, const TensorMap& model, const InitOptions& init,
             const std::string& path) {
  std::vector<std::string> lines;
  if (!fit.wrong.empty()) {
    lines.push_back(
        fmt::format("{}: {}: {} of {} tensors of this model are not there in its shape:", kKey,
                    path, fit.wrong.size(), model.size()));
    lines.insert(lines.end(), fit.wrong.begin(), fit.wrong.end());
    std::vector<std::string> anew = init.anew;
    anew.insert(anew.end(), fit.wrong_modules.begin(), fit.wrong_modules.end());
    lines.push_back(
        fmt::format("  name what shall begin anew: --init-new {}", fmt::join(anew, ",")));
  }
  for (const std::string& part : init.anew) {
    const bool known =
        std::ranges::any_of(model, [&](const auto& entry) { return is_of(entry.first, part); });
    if (known) continue;
    std::set<std::string> modules;
    for (const auto& [name, tensor] : model) modules.insert(module_of(name));
    lines.push_back(fmt::format("train.init_new: this model has no '{}'; it has {}", part,
                                fmt::join(modules, ", ")));
  }
  if (lines.empty() && fit.taken.empty()) lines.push_back("train.init_new leaves nothing to take");
  return lines.empty() ? ok_status() : invalid_argument(fmt::format("{}", fmt::join(lines, "\n")));
}

Status read(checkpoint::CheckpointReader& reader, const std::string& name,
            const torch::Tensor& to) {
  STORMO_ASSIGN_OR_RETURN(const torch::Tensor values, read_range(reader, name, 0, to.numel()));
  const torch::NoGradGuard no_grad;
  to.detach().copy_(values.view(to.sizes()));
  return ok_status();
}

}  // namespace

Status check_initial_weights(const Recipe& recipe, const torch::nn::Module& module) {
  if (recipe.init.from.empty()) return ok_status();
  STORMO_ASSIGN_OR_RETURN(const auto reader, open(recipe));
  const TensorMap model = named_state(module);
  return check(fit_of(model, reader.manifest(), recipe.init), model, recipe.init, reader.path());
}

Result<std::vector<std::string>> load_initial_weights(const Recipe& recipe,
                                                      const Preprocessing& data,
                                                      const torch::nn::Module& module) {
  STORMO_ASSIGN_OR_RETURN(auto reader, open(recipe));
  const TensorMap model = named_state(module);
  const Fit fit = fit_of(model, reader.manifest(), recipe.init);
  STORMO_RETURN_IF_ERROR(check(fit, model, recipe.init, reader.path()));
  for (const std::string& name : fit.taken) {
    STORMO_RETURN_IF_ERROR(read(reader, name, model.at(name)).within(reader.path()));
  }
  std::vector<std::string> lines = {fmt::format("begins with {} of {} tensors of {}",
                                                fit.taken.size(), model.size(), reader.path())};
  if (!fit.anew.empty()) lines.push_back(fmt::format("  anew: {}", fmt::join(fit.anew, ", ")));
  if (!fit.unused.empty()) {
    lines.push_back(fmt::format("  not used: {}", fmt::join(fit.unused, ", ")));
  }
  const std::string columns = other_columns(reader.manifest(), data);
  if (!columns.empty()) lines.push_back("  " + columns);
  return lines;
}

Result<Preprocessing> initial_vocabulary(const Recipe& recipe) {
  if (recipe.init.from.empty()) return Preprocessing();
  // a run that goes on has them in its own checkpoints
  const std::string from =
      recipe.train.resume ? recipe.train.checkpoint.directory : recipe.init.from;
  const auto path = checkpoint::find_checkpoint(from);
  if (!path.ok()) return path.status().within(kKey);
  STORMO_ASSIGN_OR_RETURN(const auto manifest, checkpoint::check_checkpoint(*path, false));
  if (manifest.preprocessing_json == "{}") return Preprocessing();
  STORMO_ASSIGN_OR_RETURN(const Preprocessing all,
                          parse_preprocessing(manifest.preprocessing_json));
  Preprocessing vocabulary;
  if (recipe.data.kind == "text") vocabulary.vocabulary = all.vocabulary;
  if (recipe.data.kind == "text_classification") vocabulary.words = all.words;
  return vocabulary;
}

}  // namespace stormo::train
