#include <stormo/model/registry.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include <stormo/base/units.h>
#include <stormo/model/cnn.h>
#include <stormo/model/gpt.h>
#include <stormo/model/mlp.h>

namespace stormo::model {
namespace {

/// Collects messages of the form "model.width is 0; it must be at least 1".
class Problems {
 public:
  void require_positive(std::string_view key, std::int64_t value) {
    if (value < 1) add(fmt::format("model.{} is {}; it must be at least 1", key, value));
  }
  void add(std::string message) { messages_.push_back(std::move(message)); }
  std::vector<std::string> take() { return std::move(messages_); }

 private:
  std::vector<std::string> messages_;
};

void check_mlp(const ModelOptions& o, Problems& problems) {
  if (o.sizes.size() < 2) {
    problems.add(fmt::format(
        "model.sizes has {} entries; give at least the input and the output size, e.g. [784, 10]",
        o.sizes.size()));
  }
  for (std::size_t i = 0; i < o.sizes.size(); ++i) {
    problems.require_positive(fmt::format("sizes[{}]", i), o.sizes[i]);
  }
}

void check_gpt(const ModelOptions& o, Problems& problems) {
  problems.require_positive("layers", o.layers);
  problems.require_positive("heads", o.heads);
  problems.require_positive("width", o.width);
  problems.require_positive("context", o.context);
  problems.require_positive("vocabulary", o.vocabulary);
  if (o.heads > 0 && o.width > 0 && o.width % o.heads != 0) {
    problems.add(fmt::format("model.width {} is not divisible by model.heads {}; use e.g. {}",
                             o.width, o.heads, (o.width / o.heads + 1) * o.heads));
  }
}

}  // namespace

const std::vector<std::string>& model_kinds() {
  static const std::vector<std::string> kinds = {"mlp", "cnn", "gpt"};
  return kinds;
}

std::vector<std::string> validate(const ModelOptions& o) {
  Problems problems;
  if (o.kind == "mlp") {
    check_mlp(o, problems);
  } else if (o.kind == "cnn") {
    problems.require_positive("classes", o.classes);
  } else if (o.kind == "gpt") {
    check_gpt(o, problems);
  } else {
    const std::string_view near = nearest_match(o.kind, model_kinds());
    problems.add(fmt::format("model.kind \"{}\" is unknown; choose one of {}{}", o.kind,
                             fmt::join(model_kinds(), ", "),
                             near.empty() ? "" : fmt::format(" (did you mean {}?)", near)));
  }
  return problems.take();
}

Result<std::shared_ptr<Chain>> make_model(const ModelOptions& o) {
  if (const auto problems = validate(o); !problems.empty()) {
    return invalid_argument(fmt::format("{}", fmt::join(problems, "\n")));
  }
  if (o.kind == "mlp") return std::shared_ptr<Chain>(std::make_shared<Mlp>(o.sizes));
  if (o.kind == "cnn")
    return std::shared_ptr<Chain>(std::make_shared<Cnn>(CnnOptions{.classes = o.classes}));
  return std::shared_ptr<Chain>(std::make_shared<Gpt>(GptOptions{.vocabulary = o.vocabulary,
                                                                 .context = o.context,
                                                                 .layers = o.layers,
                                                                 .heads = o.heads,
                                                                 .width = o.width,
                                                                 .tied = o.tied}));
}

}  // namespace stormo::model
