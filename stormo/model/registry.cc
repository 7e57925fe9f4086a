#include <stormo/model/registry.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <tuple>

#include <stormo/base/units.h>
#include <stormo/model/cnn.h>
#include <stormo/model/gpt.h>
#include <stormo/model/locally_connected.h>
#include <stormo/model/mlp.h>
#include <stormo/model/resnet20.h>
#include <stormo/model/text_classifier.h>

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

void check_heads(const ModelOptions& o, Problems& problems) {
  problems.require_positive("heads", o.heads);
  if (o.heads > 0 && o.width > 0 && o.width % o.heads != 0) {
    problems.add(fmt::format("model.width {} is not divisible by model.heads {}; use e.g. {}",
                             o.width, o.heads, (o.width / o.heads + 1) * o.heads));
  }
}

void check_gpt(const ModelOptions& o, Problems& problems) {
  problems.require_positive("layers", o.layers);
  problems.require_positive("width", o.width);
  problems.require_positive("context", o.context);
  problems.require_positive("vocabulary", o.vocabulary);
  check_heads(o, problems);
}

/// `least`: of height and width.
void check_images(const ModelOptions& o, std::int64_t least, Problems& problems) {
  problems.require_positive("classes", o.classes);
  if (o.image.empty()) return;
  if (o.image.size() != 3 || std::ranges::any_of(o.image, [](auto n) { return n < 1; })) {
    problems.add(fmt::format("model.image is [{}]; it must be channels, height and width",
                             fmt::join(o.image, ", ")));
  } else if (o.image[1] < least || o.image[2] < least) {
    problems.add(
        fmt::format("model \"{}\" takes images of {} x {} pixels or more, a sample is "
                    "[{}]; choose model.kind=mlp, or a larger data.image",
                    o.kind, least, least, fmt::join(o.image, ", ")));
  }
}

void check_text_classifier(const ModelOptions& o, Problems& problems) {
  problems.require_positive("classes", o.classes);
  problems.require_positive("width", o.width);
  problems.require_positive("context", o.context);
  problems.require_positive("vocabulary", o.vocabulary);
  if (o.layers < 0)
    problems.add(fmt::format("model.layers is {}; it must be at least 0", o.layers));
  if (o.layers > 0) check_heads(o, problems);
  if (o.layers > 0 && o.sparse) {
    problems.add(
        "model.sparse goes with model.layers=0: behind an encoder the table has dense gradients");
  }
}

std::tuple<std::int64_t, std::int64_t, std::int64_t> form(const std::vector<std::int64_t>& image) {
  return {image[0], image[1], image[2]};
}

std::shared_ptr<Chain> build(const ModelOptions& o) {
  if (o.kind == "mlp") {
    return std::make_shared<Mlp>(o.sizes, o.by_columns ? MlpCut::kByColumns : MlpCut::kByLayers);
  }
  if (o.kind == "cnn") {
    CnnOptions cnn{.classes = o.classes};
    if (!o.image.empty()) std::tie(cnn.channels, cnn.height, cnn.width) = form(o.image);
    return std::make_shared<Cnn>(cnn);
  }
  if (o.kind == "local") {
    LocalNetOptions local{.classes = o.classes};
    if (!o.image.empty()) std::tie(local.channels, local.height, local.width) = form(o.image);
    return std::make_shared<LocalNet>(local);
  }
  if (o.kind == "resnet20") {
    ResNet20Options resnet{.classes = o.classes};
    if (!o.image.empty()) std::tie(resnet.channels, resnet.height, resnet.width) = form(o.image);
    return std::make_shared<ResNet20>(resnet);
  }
  if (o.kind == "text_classifier") {
    return std::make_shared<TextClassifier>(TextClassifierOptions{.vocabulary = o.vocabulary,
                                                                  .classes = o.classes,
                                                                  .width = o.width,
                                                                  .layers = o.layers,
                                                                  .heads = o.heads,
                                                                  .context = o.context,
                                                                  .sparse = o.sparse});
  }
  return std::make_shared<Gpt>(GptOptions{.vocabulary = o.vocabulary,
                                          .context = o.context,
                                          .layers = o.layers,
                                          .heads = o.heads,
                                          .width = o.width,
                                          .tied = o.tied});
}

}  // namespace

const std::vector<std::string>& model_kinds() {
  static const std::vector<std::string> kinds = {
      "mlp", "cnn", "gpt", "resnet20", "text_classifier", "local"};
  return kinds;
}

bool takes_images(const std::string& kind) {
  return kind == "cnn" || kind == "local" || kind == "resnet20";
}

std::vector<std::string> validate(const ModelOptions& o) {
  Problems problems;
  if (o.kind == "mlp") {
    check_mlp(o, problems);
  } else if (o.kind == "cnn") {
    check_images(o, kCnnLeastSide, problems);
  } else if (o.kind == "gpt") {
    check_gpt(o, problems);
  } else if (o.kind == "resnet20" || o.kind == "local") {
    check_images(o, 1, problems);
  } else if (o.kind == "text_classifier") {
    check_text_classifier(o, problems);
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
  return build(o);
}

}  // namespace stormo::model
