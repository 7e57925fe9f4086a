#include <cli/bench/step/opponents.h>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>

namespace stormo::cli {
namespace {

/// Chunks of the model on each rank of a pipeline of PyTorch; 0: another opponent.
int chunks_of(const std::string& name) {
  if (name == "pytorch_gpipe" || name == "pytorch_1f1b") return 1;
  return name == "pytorch_interleaved" || name == "pytorch_zero_bubble" ? 2 : 0;
}

/// Of a key like "model.layers" in the recipe of a model; 0 where it has none.
int number_of(const StepModel& model, std::string_view key) {
  for (const std::string& line : model.recipe) {
    if (!line.starts_with(std::string(key) + "=")) continue;
    int number = 0;
    std::from_chars(line.data() + key.size() + 1, line.data() + line.size(), number);
    return number;
  }
  return 0;
}

bool is_gpt(const StepModel& model) { return model.recipe.front() == "model.kind=gpt"; }

Status refuse(const std::string& name, const std::string& why) {
  return invalid_argument(name + ": " + why);
}

Status check_micro_batches(const std::string& name, const StepJob& job, int ranks) {
  const int batch = job.batch, m = job.micro_batches;
  if (batch % m != 0) {
    return refuse(name, fmt::format("cannot divide a batch of {} in {} micro-batches; use --batch "
                                    "{}, or another number of --micro-batches",
                                    batch, m, (batch / m + 1) * m));
  }
  if (name == "pytorch_1f1b" && m < ranks) {
    return refuse(name, fmt::format("needs at least as many micro-batches as stages; use "
                                    "--micro-batches {0} or more",
                                    ranks));
  }
  const int rounds = std::max(1, m / ranks);
  if (chunks_of(name) == 2 && m % rounds != 0) {
    return refuse(name, fmt::format("computes {} micro-batches in {} rounds of equal size; use a "
                                    "multiple of {} --micro-batches",
                                    m, rounds, ranks));
  }
  return {};
}

}  // namespace

Status check_step_opponent(const std::string& name, const StepJob& job, int ranks) {
  const int chunks = chunks_of(name);
  if (chunks == 0 && name != "pytorch_tensor") return {};
  if (job.strategy->cut.empty()) {
    return refuse(name, fmt::format("its ranks compute one batch together, and those of {} one "
                                    "each; use --strategy 1f1b or tensor",
                                    job.strategy->name));
  }
  if (chunks == 0) {
    const int heads = number_of(*job.model, "model.heads");
    if (heads % ranks == 0) return {};  // 0: a model without attention
    return refuse(name, fmt::format("{} ranks do not divide the {} heads of {}; use another -n",
                                    ranks, heads, job.model->name));
  }
  const int layers = number_of(*job.model, "model.layers");
  if (!is_gpt(*job.model) || layers % (ranks * chunks) != 0) {
    return refuse(name, fmt::format("needs a gpt whose layers are a multiple of {}; {} {}",
                                    ranks * chunks, job.model->name,
                                    is_gpt(*job.model) ? fmt::format("has {}", layers)
                                                       : std::string("is none")));
  }
  return check_micro_batches(name, job, ranks);
}

std::vector<PythonImport> imports_of_step_opponent(const std::string& name) {
  if (name == "pytorch_fsdp") return {{"from torch.distributed.fsdp import fully_shard", "torch"}};
  if (name == "pytorch_tensor") {
    return {{"from torch.distributed.tensor.parallel import parallelize_module", "torch"}};
  }
  // stages tell each other the shapes of tensors by means of numpy
  if (chunks_of(name) > 0) {
    return {{"from torch.distributed.pipelining import ScheduleInterleavedZeroBubble", "torch"},
            {"import numpy", "numpy"}};
  }
  return {{"import torch.distributed", "torch"}};
}

}  // namespace stormo::cli
