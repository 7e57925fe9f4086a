// `stormo evaluate`, `predict` and `sample`: what can be asked of a trained model.

#include <cli/commands.h>
#include <cli/trained/arguments.h>

namespace stormo::cli {
namespace {

constexpr const char* kEvaluateExamples =
    "  stormo evaluate runs/mnist                            on the data of its recipe\n"
    "  stormo evaluate runs/mnist/step-00000938 data.path=DIR\n"
    "  stormo evaluate runs/flowers --best data.test=other.csv --json\n"
    "\n"
    "Preprocessing, names of classes and vocabulary come with the checkpoint; key=value says "
    "where\n"
    "other data lie (data.path, data.validation, data.test) and how they are written. Exit codes:\n"
    "0 done; 1 the checkpoint is damaged; 2 usage, or the data do not fit the model.";

constexpr const char* kPredictExamples =
    "  stormo predict runs/flowers rose.jpg tulip.png            images\n"
    "  stormo predict runs/sst2 reviews.txt --top 2              texts, one per line\n"
    "  stormo predict runs/iris new.csv --json                   rows of a table, without label\n"
    "\n"
    "Files are of the form that the model was trained on (mnist: images). A file that cannot be\n"
    "predicted is named on stderr, the others are predicted. Exit codes: 0 done; 1 a file or the\n"
    "checkpoint is damaged; 2 usage, or a file does not fit the model.";

constexpr const char* kSampleExamples =
    "  stormo sample runs/gpt_shakespeare --prompt 'ROMEO:' --length 400\n"
    "  stormo sample runs/quickstart --temperature 0             always the likeliest token\n"
    "  stormo sample runs/quickstart --seed 7 --json\n"
    "\n"
    "What is not given is as in the recipe: without any flag the text is the one that the "
    "training\n"
    "showed at its end. Exit codes: 0 done; 1 the checkpoint is damaged; 2 usage, or the model "
    "writes\n"
    "no text.";

void add_model_choice(CLI::App& command, ModelChoice& choice) {
  command
      .add_option("checkpoint", choice.path, "A checkpoint, or a folder of them: then the newest")
      ->required();
  command.add_flag("--best", choice.best, "The best one of the folder (checkpoint.best)");
  command.add_flag("--json", choice.json, "One JSON object per line on stdout");
}

void add_evaluate_flags(CLI::App& command, ModelChoice& choice) {
  add_model_choice(command, choice);
  command.add_option("overrides", choice.overrides, "key=value: where other data lie");
}

void add_predict_flags(CLI::App& command, PredictArguments& a) {
  add_model_choice(command, a.model);
  command.add_option("files", a.files, "Images, texts, tables or arrays")->required();
  command.add_option("--top", a.top, "How many of the likeliest classes to say")
      ->check(CLI::Range(1, 1000));
}

void add_sample_flags(CLI::App& command, SampleArguments& a) {
  add_model_choice(command, a.model);
  command.add_option("--prompt", a.prompt, "Text to continue");
  command.add_option("--length", a.length, "Tokens to write");
  command.add_option("--temperature", a.temperature, "0: always the likeliest token");
  command.add_option("--top-k", a.top_k, "Draw among so many likeliest tokens; 0: among all");
  command.add_option("--seed", a.seed, "Of the draws");
}

}  // namespace

void add_evaluate_command(CLI::App& app, Invocation& invocation) {
  add_command(app, invocation, "evaluate", "Judge a trained model on held-out data",
              kEvaluateExamples, add_evaluate_flags, evaluate);
}

void add_predict_command(CLI::App& app, Invocation& invocation) {
  add_command(app, invocation, "predict", "Ask a trained model about files", kPredictExamples,
              add_predict_flags, predict);
}

void add_sample_command(CLI::App& app, Invocation& invocation) {
  add_command(app, invocation, "sample", "Let a trained language model write", kSampleExamples,
              add_sample_flags, sample);
}

}  // namespace stormo::cli
