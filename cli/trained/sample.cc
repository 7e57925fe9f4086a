// `stormo sample`: a trained language model continues a text.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include <cli/plan/output.h>
#include <cli/trained/arguments.h>
#include <cli/trained/model.h>
#include <stormo/base/printable.h>
#include <stormo/base/requirements.h>
#include <stormo/train/prepare/recipe_task.h>

namespace stormo::cli {
namespace {

constexpr std::int64_t kLength = 200;  // where the recipe says none

Status check(const SampleArguments& a) {
  Requirements require("\n");
  require(a.length.value_or(1) >= 1 && a.length.value_or(1) <= 1'000'000,
          "--length must be from 1 to 1000000 tokens");
  require(a.temperature.value_or(1) >= 0 && a.temperature.value_or(1) <= 100,
          "--temperature must be from 0 to 100");
  require(a.top_k.value_or(0) >= 0, "--top-k must not be negative");
  return require.status();
}

Status write_text(const SampleArguments& a, const train::TrainedModel& model) {
  if (model.recipe.model.kind != "gpt") {
    return invalid_argument(fmt::format(
        "{} holds a {}, which writes no text; use `stormo predict` or `stormo evaluate`",
        model.checkpoint, model.recipe.model.kind));
  }
  train::SampleOptions options = model.recipe.sample;
  if (options.length == 0) options.length = kLength;
  options.length = a.length.value_or(options.length);
  options.temperature = a.temperature.value_or(options.temperature);
  options.top_k = a.top_k.value_or(options.top_k);
  const std::uint64_t seed = a.seed.value_or(model.recipe.train.seed);
  STORMO_ASSIGN_OR_RETURN(
      const std::string text,
      train::continue_text(model.task, model.preprocessing, a.prompt, options, seed));
  if (a.model.json) {
    const nlohmann::ordered_json line = {{"event", "sample"},  {"schema", 1},
                                         {"step", model.step}, {"seed", seed},
                                         {"prompt", a.prompt}, {"text", text}};
    print_json(line);
  } else {
    const bool terminal = ::isatty(STDOUT_FILENO) == 1;
    fmt::print("{}\n", terminal ? printable(text) : text);
  }
  return {};
}

}  // namespace

int sample(const SampleArguments& a) {
  return with_trained_model("sample", a.model, [&](const train::TrainedModel& model) -> Status {
    STORMO_RETURN_IF_ERROR(check(a));
    return write_text(a, model);
  });
}

}  // namespace stormo::cli
