#include <cli/bench/step/options.h>

#include <fmt/format.h>

#include <algorithm>

#include <cli/bench/options.h>
#include <cli/bench/step/opponents.h>
#include <cli/flag_values.h>
#include <cli/number_check.h>
#include <stormo/codec/codec.h>

namespace stormo::cli {
namespace {

constexpr int kLeastSteps = 3;
constexpr int kMicroBatches = 8;  // of pipelines that overlap them

/// The name of a pipeline is that of its schedule.
StepStrategy pipeline(std::string_view name, const std::string& key = {}) {
  StepStrategy row{name,
                   {"strategy.kind=ddp", fmt::format("strategy.schedule={}", name)},
                   "strategy.pipeline",
                   kMicroBatches};
  if (!key.empty()) row.recipe.push_back(key);
  return row;
}
StepStrategy late_pipeline(std::string_view name, int micro_batches) {
  StepStrategy row = pipeline(name, "strategy.period=1000");
  row.micro_batches = micro_batches;
  row.deviates = true;
  return row;
}

/// Replicas whose gradients travel in a codec, for each codec: "ddp_int8".
void append_codecs(std::vector<StepStrategy>& all) {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> out;
    for (const std::string_view codec : codec_names()) out.push_back(fmt::format("ddp_{}", codec));
    return out;
  }();
  for (const CodecRow& row : codec_rows()) {
    if (row.codec == Codec::kNone) continue;
    all.push_back({.name = names[row.codec],
                   .recipe = {"strategy.kind=ddp", "strategy.parameters=replicated",
                              fmt::format("strategy.compression={}", row.word)},
                   .deviates = !row.type});
  }
}

/// Neighbours only: no average of all within a measurement.
StepStrategy gossip(std::string_view name, std::string_view topology) {
  return {name,
          {"strategy.kind=gossip", fmt::format("strategy.topology={}", topology),
           "strategy.period=100000"}};
}

/// Every micro-batch has equally many samples: opponents can compute no others.
int batch_of(const StepModel& model, int micro_batches) {
  return (model.batch + micro_batches - 1) / micro_batches * micro_batches;
}

/// Whether the links are those that a prediction assumes: see load_topology().
bool links_are_known(const StepArguments& a) { return a.rate.empty() || a.rate == "1gbit"; }

}  // namespace

std::span<const StepModel> step_models() {
  static const std::vector<StepModel> models = {
      {"mlp", {"model.kind=mlp", "model.sizes=[784, 512, 512, 10]"}, {1, 28, 28}, false, 64, 200},
      {"cnn", {"model.kind=cnn"}, {1, 28, 28}, false, 32, 80},
      {"gpt",
       {"model.kind=gpt", "model.layers=4", "model.heads=4", "model.width=128", "model.context=64"},
       {64},
       true,
       12,
       30},
      {"gpt_long",
       {"model.kind=gpt", "model.layers=4", "model.heads=4", "model.width=128",
        "model.context=2048"},
       {2048},
       true,
       2,
       20},
      {"wide", {"model.kind=mlp", "model.sizes=[1024, 4096, 4096, 10]"}, {1024}, false, 16, 30},
  };
  return models;
}

std::span<const StepStrategy> step_strategies() {
  static const std::vector<StepStrategy> strategies = [] {
    std::vector<StepStrategy> all = {
        {"one_device", {"strategy.kind=one_device"}},
        {"mirrored", {"strategy.kind=mirrored"}},
        {"multi_worker_mirrored", {"strategy.kind=multi_worker_mirrored"}},
        {"central_storage", {"strategy.kind=central_storage"}},
        {"ddp", {"strategy.kind=ddp", "strategy.parameters=replicated"}},
        {"ddp_no_overlap",
         {"strategy.kind=ddp", "strategy.parameters=replicated", "strategy.overlap=false"}},
        {.name = "ddp_adasum",
         .recipe = {"strategy.kind=ddp", "strategy.reducer=adasum"},
         .deviates = true},
        gossip("gossip_ring", "ring"),
        gossip("gossip_one_peer", "one_peer_exponential"),
        {"host_shared", {"strategy.kind=ddp", "strategy.parameters=host_shared"}},
        {"fsdp1", {"strategy.kind=fsdp", "strategy.stage=1"}},
        {"fsdp2", {"strategy.kind=fsdp", "strategy.stage=2"}},
        {"fsdp3", {"strategy.kind=fsdp", "strategy.stage=3"}},
        {"sharded3", {"strategy.kind=fsdp", "strategy.stage=3", "strategy.parameters=sharded"}},
        pipeline("gpipe"),
        pipeline("1f1b"),
        pipeline("eager_1f1b"),
        pipeline("interleaved", "strategy.chunks=2"),
        pipeline("zero_bubble"),
        pipeline("zero_bubble_v", "strategy.chunks=2"),
        late_pipeline("pipedream", kMicroBatches),
        late_pipeline("pipedream_2bw", kMicroBatches),
        late_pipeline("ddg", 1),
        {"tensor", {"strategy.kind=ddp"}, "strategy.tensor"},
        {"context", {"strategy.kind=ddp", "strategy.attention=ring"}, "strategy.context"},
        {"context_heads", {"strategy.kind=ddp", "strategy.attention=heads"}, "strategy.context"},
    };
    append_codecs(all);
    return all;
  }();
  return strategies;
}

void add_training_flags(CLI::App& command, TrainingFlags& flags, const std::string& computer,
                        const std::string& opponents, const std::string& scripts) {
  add_bench_flags(command, flags, opponents, std::to_string(kTrainingRounds), scripts);
  command.add_option("--model", flags.models, "Models, separated by commas")
      ->delimiter(',')
      ->capture_default_str();
  note_number(command.add_option("--batch", flags.batch,
                                 fmt::format("Samples per {}; default: the model's", computer)),
              1, flags.wrong);
  note_number(
      command.add_option("--micro-batches", flags.micro_batches,
                         "Parts of a batch; default: 8 for pipelines of bench step, else 1"),
      1, flags.wrong);
  note_number(command.add_option("--steps", flags.steps,
                                 "Steps to time in every round; default: the model's"),
              kLeastSteps, flags.wrong);
  command.add_flag("--json", flags.json, "One JSON object per model on stdout");
  command.add_option("--contender", flags.contender, "")->group("");
}

std::vector<StepJob> read_jobs(const TrainingFlags& flags, const StepStrategy* strategy,
                               Wrong& wrong) {
  std::vector<StepJob> jobs;
  for (const std::string& name : flags.models) {
    const StepModel* model = find_row(step_models(), name, "--model", wrong);
    if (model == nullptr) continue;
    const int micro_batches = flags.micro_batches > 0 ? flags.micro_batches
                              : strategy != nullptr   ? strategy->micro_batches
                                                      : 1;
    jobs.push_back({.model = model,
                    .strategy = strategy,
                    .batch = flags.batch > 0 ? flags.batch : batch_of(*model, micro_batches),
                    .micro_batches = micro_batches,
                    .steps = flags.steps > 0 ? flags.steps : model->steps});
  }
  return jobs;
}

Result<TrainingOptions> to_step_options(const StepArguments& a) {
  TrainingOptions options;
  Wrong wrong = a.wrong;
  const StepStrategy* strategy = find_row(step_strategies(), a.strategy, "--strategy", wrong);
  options.jobs = read_jobs(a, strategy, wrong);
  options.against = known_names(names_of(step_opponents()), a.against, "--against", wrong);
  if (std::ranges::count(options.against, "predicted") > 0 && !links_are_known(a))
    wrong.push_back("--against predicted: needs --rate 1gbit, or one host");
  if (a.rounds > 0) options.rounds = a.rounds;
  options.namespaces = read_namespaces(a, wrong);
  STORMO_RETURN_IF_ERROR(as_status(wrong));
  return options;
}

}  // namespace stormo::cli
