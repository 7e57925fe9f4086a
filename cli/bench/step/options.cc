#include <cli/bench/step/options.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include <cli/bench/find_row.h>
#include <cli/bench/options.h>

namespace stormo::cli {
namespace {

constexpr int kDefaultRounds = 5;
constexpr int kLeastSteps = 3;
constexpr std::string_view kPipeline = "strategy.pipeline";
constexpr int kMicroBatches = 8;  // of pipelines that overlap them

using Wrong = std::vector<std::string>;

void read_opponents(const StepArguments& a, BenchStepOptions& options, Wrong& wrong) {
  for (const std::string& name : a.against) {
    if (std::find(std::begin(kStepOpponents), std::end(kStepOpponents), name) ==
        std::end(kStepOpponents))
      wrong.push_back(fmt::format("--against: '{}' is unknown; there are {}", name,
                                  fmt::join(kStepOpponents, ", ")));
    else if (std::find(options.against.begin(), options.against.end(), name) ==
             options.against.end())
      options.against.push_back(name);
  }
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
  static const std::vector<StepStrategy> strategies = {
      {"one_device", {"strategy.kind=one_device"}},
      {"mirrored", {"strategy.kind=mirrored"}},
      {"multi_worker_mirrored", {"strategy.kind=multi_worker_mirrored"}},
      {"central_storage", {"strategy.kind=central_storage"}},
      {"ddp", {"strategy.kind=ddp", "strategy.parameters=replicated"}},
      {"ddp_no_overlap",
       {"strategy.kind=ddp", "strategy.parameters=replicated", "strategy.overlap=false"}},
      {"ddp_bfloat16",
       {"strategy.kind=ddp", "strategy.parameters=replicated", "strategy.compression=bfloat16"}},
      {"host_shared", {"strategy.kind=ddp", "strategy.parameters=host_shared"}},
      {"fsdp1", {"strategy.kind=fsdp", "strategy.stage=1"}},
      {"fsdp2", {"strategy.kind=fsdp", "strategy.stage=2"}},
      {"fsdp3", {"strategy.kind=fsdp", "strategy.stage=3"}},
      {"sharded3", {"strategy.kind=fsdp", "strategy.stage=3", "strategy.parameters=sharded"}},
      {"gpipe", {"strategy.kind=ddp", "strategy.schedule=gpipe"}, kPipeline, kMicroBatches},
      {"1f1b", {"strategy.kind=ddp", "strategy.schedule=1f1b"}, kPipeline, kMicroBatches},
      {"eager_1f1b",
       {"strategy.kind=ddp", "strategy.schedule=eager_1f1b"},
       kPipeline,
       kMicroBatches},
      {"interleaved",
       {"strategy.kind=ddp", "strategy.schedule=interleaved", "strategy.chunks=2"},
       kPipeline,
       kMicroBatches},
      {"zero_bubble",
       {"strategy.kind=ddp", "strategy.schedule=zero_bubble"},
       kPipeline,
       kMicroBatches},
      {"zero_bubble_v",
       {"strategy.kind=ddp", "strategy.schedule=zero_bubble_v", "strategy.chunks=2"},
       kPipeline,
       kMicroBatches},
      {"pipedream",
       {"strategy.kind=ddp", "strategy.schedule=pipedream", "strategy.period=1000"},
       kPipeline,
       kMicroBatches,
       /*delayed=*/true},
      {"pipedream_2bw",
       {"strategy.kind=ddp", "strategy.schedule=pipedream_2bw", "strategy.period=1000"},
       kPipeline,
       kMicroBatches,
       /*delayed=*/true},
      {"ddg",
       {"strategy.kind=ddp", "strategy.schedule=ddg", "strategy.period=1000"},
       kPipeline,
       /*micro_batches=*/1,
       /*delayed=*/true},
      {"tensor", {"strategy.kind=ddp"}, "strategy.tensor"},
      {"context", {"strategy.kind=ddp", "strategy.attention=ring"}, "strategy.context"},
      {"context_heads", {"strategy.kind=ddp", "strategy.attention=heads"}, "strategy.context"},
  };
  return strategies;
}

Result<BenchStepOptions> to_step_options(const StepArguments& a) {
  BenchStepOptions options;
  Wrong wrong;
  const StepStrategy* strategy = find_row(step_strategies(), a.strategy, "--strategy", wrong);
  for (const std::string& name : a.models) {
    const StepModel* model = find_row(step_models(), name, "--model", wrong);
    if (model == nullptr) continue;
    const int micro_batches = a.micro_batches > 0   ? a.micro_batches
                              : strategy != nullptr ? strategy->micro_batches
                                                    : 1;
    options.jobs.push_back({.model = model,
                            .strategy = strategy,
                            .batch = a.batch > 0 ? a.batch : batch_of(*model, micro_batches),
                            .micro_batches = micro_batches,
                            .steps = a.steps > 0 ? a.steps : model->steps});
  }
  read_opponents(a, options, wrong);
  if (std::ranges::count(options.against, "predicted") > 0 && !links_are_known(a))
    wrong.push_back("--against predicted: needs --rate 1gbit, or one host");
  if (a.micro_batches < 0) wrong.push_back("--micro-batches: at least 1");
  if (a.batch < 0) wrong.push_back("--batch: at least 1 sample per rank");
  if (a.steps != 0 && a.steps < kLeastSteps)
    wrong.push_back(fmt::format("--steps: at least {}", kLeastSteps));
  if (a.rounds < 0) wrong.push_back("--rounds: at least 1");
  options.rounds = a.rounds > 0 ? a.rounds : kDefaultRounds;
  options.rate = a.rate;
  options.namespaces = read_namespaces(a.launch, a.rate, a.ranks_per_host, wrong);
  if (options.namespaces == 0) static_cast<void>(to_launch_options(a.launch, wrong));
  if (!wrong.empty()) return invalid_argument(fmt::format("{}", fmt::join(wrong, "\n")));
  return options;
}

}  // namespace stormo::cli
