#include <cli/bench/step/opponents.h>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include <cli/bench/async/options.h>

namespace stormo::cli {
namespace {

constexpr std::string_view kTorchStep = "torch_step.py";

/// A loop of torch_step.py.
TrainingOpponent torch_step(std::string_view name, std::string_view what,
                            const std::string& import = "import torch.distributed") {
  return {.name = name, .what = what, .script = kTorchStep, .imports = {{import, "torch"}}};
}

/// DistributedDataParallel with PyTorch's hook PowerSGD.
TrainingOpponent power_sgd(std::string_view name, std::string_view what) {
  TrainingOpponent row = torch_step(
      name, what, "from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook");
  row.imports.push_back({"import numpy", "numpy"});
  row.deviates = true;
  return row;
}

TrainingOpponent torch_pipeline(std::string_view name, std::string_view what, int chunks) {
  TrainingOpponent row = torch_step(
      name, what, "from torch.distributed.pipelining import ScheduleInterleavedZeroBubble");
  row.imports.push_back({"import numpy", "numpy"});  // stages tell each other shapes by its means
  row.chunks = chunks;
  return row;
}

/// The same over Stormo's backend in Gloo's place: torch_step.py reads it from the name.
TrainingOpponent over_stormo(TrainingOpponent row, std::string_view name, std::string_view what) {
  row.instead_of = row.name;
  row.name = name;
  row.what = what;
  row.imports.push_back({"import stormo_torch", "stormo-torch"});
  return row;
}

/// Workers that meet once in kMeetingPeriod steps.
TrainingOpponent torch_local(std::string_view name, std::string_view what) {
  return {
      .name = name,
      .what = what,
      .script = "torch_local_step.py",
      .imports = {{"from torch.distributed.algorithms.model_averaging import averagers", "torch"}},
      .modules = {"torch_meetings.py", "torch_worker.py", std::string(kTorchStep)}};
}

/// A process of this program with libtorch.
TrainingOpponent own_process(std::string_view name, std::string_view what, bool tuned) {
  return {.name = name, .what = what, .process = name, .tuned = tuned};
}

TrainingOpponent tensorflow(std::string_view name, std::string_view what, std::string_view script,
                            bool one_record) {
  return {.name = name,
          .what = what,
          .script = script,
          .imports = {{"import numpy", "numpy"}, {"import tensorflow", "tensorflow-cpu"}},
          .modules = {"tensorflow_ps_step.py"},  // reads the inputs
          .starts_ranks = true,
          .one_record = one_record};
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

Status refuse(std::string_view name, const std::string& why) {
  return invalid_argument(fmt::format("{}: {}", name, why));
}

Status check_micro_batches(const TrainingOpponent& opponent, const StepJob& job, int ranks) {
  const std::string_view name = opponent.name;
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
  if (opponent.chunks == 2 && m % rounds != 0) {
    return refuse(name, fmt::format("computes {} micro-batches in {} rounds of equal size; use a "
                                    "multiple of {} --micro-batches",
                                    m, rounds, ranks));
  }
  return {};
}

}  // namespace

std::span<const TrainingOpponent> step_opponents() {
  static const auto ddp = torch_step("pytorch_ddp", "DistributedDataParallel over Gloo");
  static const auto fsdp = torch_step("pytorch_fsdp", "fully_shard over Gloo",
                                      "from torch.distributed.fsdp import fully_shard");
  static const auto gpipe = torch_pipeline("pytorch_gpipe", "a pipeline over Gloo", 1);
  static const auto tensor =
      torch_step("pytorch_tensor", "tensor parallelism over Gloo",
                 "from torch.distributed.tensor.parallel import parallelize_module");
  static const std::vector<TrainingOpponent> all = {
      ddp,
      torch_step("pytorch_fp16_hook", "pytorch_ddp with gradients of 16 bits, by its hook"),
      power_sgd("pytorch_powersgd", "pytorch_ddp with its hook PowerSGD of rank 4, one bucket"),
      power_sgd("pytorch_powersgd_1", "the same of rank 1"),
      fsdp,
      torch_step("pytorch", "a loop in Python without communication"),
      own_process("arena", "libtorch's loop with its tensors in the Arena", /*tuned=*/false),
      own_process("predicted", "the simulated step, from times of its segments here",
                  /*tuned=*/false),
      gpipe,
      torch_pipeline("pytorch_1f1b", "a pipeline over Gloo", 1),
      torch_pipeline("pytorch_interleaved", "a pipeline over Gloo, two chunks a rank", 2),
      torch_pipeline("pytorch_zero_bubble", "the same without bubbles", 2),
      tensor,
      over_stormo(ddp, "pytorch_ddp_stormo", "pytorch_ddp over the backend stormo"),
      over_stormo(ddp, "pytorch_hook_stormo", "stormo_torch.DistributedDataParallel"),
      over_stormo(ddp, "pytorch_average_stormo", "stormo_torch.average_gradients"),
      over_stormo(fsdp, "pytorch_fsdp_stormo", "pytorch_fsdp over the backend stormo"),
      over_stormo(gpipe, "pytorch_gpipe_stormo", "pytorch_gpipe over the backend stormo"),
      over_stormo(tensor, "pytorch_tensor_stormo", "pytorch_tensor over the backend stormo"),
      own_process("one_process", "libtorch's loop in one process, a thread per rank",
                  /*tuned=*/true)};
  return all;
}

std::span<const TrainingOpponent> async_opponents() {
  static const std::vector<TrainingOpponent> all = {
      {.name = "no_communication",
       .what = "every worker for itself",
       .process = "plain",
       .strategy = "one_device"},
      {.name = kFastWorkers,
       .what = "parameter_server:sync without the slow one",
       .process = "stormo",
       .strategy = "parameter_server:sync",
       .more_ranks = -1,
       .tuned = false},
      {.name = "torch_rpc",
       .what = "a server over torch.distributed.rpc",
       .script = "torch_rpc_step.py",
       .imports = {{"from torch.distributed import rpc", "torch"}},
       .modules = {"torch_worker.py", std::string(kTorchStep)},
       .forms = {"tensors", "flat"},
       .more_ranks = 1},
      tensorflow("tensorflow_ps", "its ParameterServerStrategy", "tensorflow_ps_step.py",
                 /*one_record=*/true),
      tensorflow("tensorflow_mirrored", "its MultiWorkerMirroredStrategy",
                 "tensorflow_mirrored_step.py", /*one_record=*/false),
      torch_local("pytorch_local_sgd", "averages of parameters over Gloo"),
      torch_local("pytorch_diloco", "DiLoCo over Gloo")};
  return all;
}

std::vector<std::string_view> names_of(std::span<const TrainingOpponent> opponents) {
  std::vector<std::string_view> out;
  for (const TrainingOpponent& o : opponents) out.push_back(o.name);
  return out;
}

std::string help_of(std::span<const TrainingOpponent> opponents) {
  std::string out = "Who is compared with, separated by commas:";
  for (const TrainingOpponent& o : opponents) out += fmt::format("\n{}: {}", o.name, o.what);
  return out;
}

Status check_opponent(const TrainingOpponent& opponent, const StepJob& job, int ranks, bool slow) {
  const std::string_view name = opponent.name;
  const int chunks = opponent.chunks;
  if (opponent.starts_ranks && job.model->recipe.front() != "model.kind=mlp")
    return refuse(name, "its script has fully connected models only");
  if (opponent.starts_ranks && slow) return refuse(name, "none of its workers can be made slow");
  if (chunks == 0 && !name.starts_with("pytorch_tensor")) return {};
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
  return check_micro_batches(opponent, job, ranks);
}

}  // namespace stormo::cli
