// `stormo predict`: what a trained model says about files.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <cli/commands.h>
#include <cli/trained/model.h>
#include <stormo/base/printable.h>
#include <stormo/train/predict.h>

namespace stormo::cli {
namespace {

constexpr const char* kExamples =
    "  stormo predict runs/flowers rose.jpg tulip.png            images\n"
    "  stormo predict runs/sst2 reviews.txt --top 2              texts, one per line\n"
    "  stormo predict runs/iris new.csv --json                   rows of a table, without label\n"
    "\n"
    "Files are of the form that the model was trained on (mnist: images). A file that cannot be\n"
    "predicted is named on stderr, the others are predicted. Exit codes: 0 done; 1 a file or the\n"
    "checkpoint is damaged; 2 usage, or a file does not fit the model.";

struct PredictArguments {
  ModelChoice model;
  std::vector<std::string> files;
  int top = 1;
};

std::string place(const train::Prediction& p) {
  return p.line == 0 ? p.file : fmt::format("{}:{}", p.file, p.line);
}

void print_json(const train::Prediction& p) {
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
  fmt::print("{}\n", line.dump(-1, ' ', false, Json::error_handler_t::replace));
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
Status predict(const PredictArguments& a, const train::TrainedModel& model) {
  if (model.recipe.model.kind == "gpt") {
    return invalid_argument(fmt::format(
        "{} holds a gpt, which continues texts and says nothing about files; use `stormo sample`",
        model.checkpoint));
  }
  Status first;
  int failed = 0;
  for (const std::string& file : a.files) {
    const Status done =
        train::predict_file(model, file, a.top, a.model.json ? print_json : print_text);
    if (done.ok()) continue;
    if (++failed == 1) first = done;
    fmt::print(stderr, "stormo predict: {}\n", done.message());
  }
  if (failed == 0) return {};
  return {first.code(),
          fmt::format("{} of {} files could not be predicted", failed, a.files.size())};
}

}  // namespace

void add_predict_command(CLI::App& app, Invocation& invocation) {
  CLI::App* command = app.add_subcommand("predict", "Ask a trained model about files");
  command->footer(kExamples);
  const auto a = std::make_shared<PredictArguments>();
  add_model_choice(*command, a->model);
  command->add_option("files", a->files, "Images, texts, tables or arrays")->required();
  command->add_option("--top", a->top, "How many of the likeliest classes to say")
      ->check(CLI::Range(1, 1000));
  command->callback([a, &invocation] {
    const auto use = [&](const train::TrainedModel& model) { return predict(*a, model); };
    invocation.exit_code = with_trained_model("predict", a->model, use);
  });
}

}  // namespace stormo::cli
