// `stormo predict`: what a trained model says about files.
#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include <cli/plan/output.h>
#include <cli/train/report.h>
#include <cli/trained/arguments.h>
#include <cli/trained/model.h>
#include <stormo/base/printable.h>
#include <stormo/train/predict/predict.h>

namespace stormo::cli {
namespace {

std::string place(const train::Prediction& p) {
  return p.line == 0 ? p.file : fmt::format("{}:{}", p.file, p.line);
}

void print_as_json(const train::Prediction& p) {
  using Json = nlohmann::ordered_json;
  Json classes = Json::array();
  for (const train::ClassChance& c : p.likeliest) {
    classes.push_back({{"class", c.name}, {"index", c.index}, {"probability", c.probability}});
  }
  const Json line = {{"event", "prediction"},
                     {"schema", 1},
                     {"file", p.file},
                     {"line", p.line == 0 ? Json(nullptr) : Json(p.line)},
                     {p.value ? "value" : "classes", p.value ? Json(*p.value) : classes}};
  print_json(line);
}

void print_text(const train::Prediction& p) {
  std::string line = printable_line(place(p)) + ":";
  if (p.value) line += fmt::format(" {:.6g}", *p.value);
  for (const train::ClassChance& c : p.likeliest) {
    line += fmt::format("{} {} {:.2f} %", &c == p.likeliest.data() ? "" : ",",
                        printable_line(c.name), 100 * c.probability);
  }
  fmt::print("{}\n", line);
}

/// The first failure of a file decides about the exit code; all are said.
Status predict_files(const PredictArguments& a, const train::TrainedModel& model) {
  if (model.recipe.model.kind == "gpt") {
    return invalid_argument(fmt::format(
        "{} holds a gpt, which continues texts and says nothing about files; use `stormo sample`",
        model.checkpoint));
  }
  Status first;
  int failed = 0;
  for (const std::string& file : a.files) {
    const train::PredictionSink sink{.prediction = a.model.json ? print_as_json : print_text,
                                     .warn = [](const std::string& line) { warn({line}); }};
    const Status done = train::predict_file(model, file, a.top, sink);
    if (done.ok()) continue;
    if (++failed == 1) first = done;
    fmt::print(stderr, "stormo predict: {}\n", done.message());
  }
  if (failed == 0) return {};
  return {first.code(),
          fmt::format("{} of {} files could not be predicted", failed, a.files.size())};
}

}  // namespace

int predict(const PredictArguments& a) {
  return with_trained_model("predict", a.model, [&](const train::TrainedModel& model) {
    return predict_files(a, model);
  });
}

}  // namespace stormo::cli
