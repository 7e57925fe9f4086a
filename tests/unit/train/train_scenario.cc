#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <stdexcept>

#include <torch/torch.h>

#include <stormo/model/registry.h>
#include <stormo/stormo.h>

#include "scenarios.h"
#include "tests/ways.h"
#include "toy.h"

namespace stormo::test {
namespace {

using Arguments = std::map<std::string, std::string>;

std::int64_t number(const Arguments& arguments, const std::string& key, std::int64_t otherwise) {
  const auto found = arguments.find(key);
  return found == arguments.end() ? otherwise : std::stoll(found->second);
}

// The file that a test compares, in bits: %a prints a double without rounding.
class FileObserver final : public observe::RunObserver {
 public:
  explicit FileObserver(const std::string& path) : out_(std::fopen(path.c_str(), "w")) {}
  ~FileObserver() override { std::fclose(out_); }
  void on_step(const observe::StepRecord& r) override {
    std::fprintf(out_, "step %lld %a\n", static_cast<long long>(r.step), r.loss);
  }
  void on_eval(const observe::EvalRecord& r) override {
    std::fprintf(out_, "eval %s %a %a\n", r.split.c_str(), r.loss, *r.accuracy);
  }
  void on_warning(const observe::WarningRecord& r) override {
    if (r.kind != "replica_mismatch") return;
    std::fprintf(out_, "mismatch %lld %s\n", static_cast<long long>(r.step), r.message.c_str());
  }
  void end(const Result<observe::EndRecord>& r) {
    if (r.ok()) std::fprintf(out_, "skipped %lld\n", static_cast<long long>(r->skipped_steps));
    std::fprintf(out_, "end %s %s\n", r.ok() ? r->weights_hash.c_str() : "-",
                 r.status().to_string().c_str());
  }

 private:
  std::FILE* out_;
};

// Writes the samples of every call into a file, a line each, and lets something happen on one rank
// while the batch of its n-th call is taken.
class EventfulDataset final : public ToyDataset {
 public:
  EventfulDataset(std::int64_t samples, std::int64_t call, std::string event,
                  const std::string& log, torch::ScalarType type)
      : ToyDataset(samples),
        call_(call),
        event_(std::move(event)),
        checkpoints_(std::filesystem::path(log).parent_path() / "ckpt"),
        log_(log),
        type_(type) {}
  data::Batch get(std::span<const std::int64_t> indices, std::int64_t epoch) const override {
    for (const std::int64_t i : indices) log_ << epoch << ':' << i << ' ';
    log_ << std::endl;
    if (++calls_ == call_) {
      if (event_ == "sigkill") raise(SIGKILL);
      if (event_ == "sigterm") raise(SIGTERM);
      if (event_ == "sigint") raise(SIGINT);
      if (event_ == "block") block_checkpoints();
      if (event_ == "throw") throw std::runtime_error("this sample cannot be read");
    }
    data::Batch batch = ToyDataset::get(indices, epoch);
    batch.input = batch.input.to(type_);
    if (calls_ == call_ && event_ == "nan") batch.input.fill_(std::nan(""));
    return batch;
  }

 private:
  // A file takes the place of the folder.
  void block_checkpoints() const {
    std::filesystem::rename(checkpoints_, checkpoints_.string() + ".aside");
    std::ofstream{checkpoints_};
  }

  std::int64_t call_;
  std::string event_;
  std::filesystem::path checkpoints_;
  mutable std::int64_t calls_ = 0;
  mutable std::ofstream log_;
  torch::ScalarType type_;
};

template <class Enum>
Enum named(const Arguments& arguments, const std::string& key,
           const std::vector<std::string>& names, Enum otherwise) {
  const auto found = arguments.find(key);
  if (found == arguments.end()) return otherwise;
  const auto at = std::find(names.begin(), names.end(), found->second);
  if (at == names.end()) throw std::invalid_argument(key + "=" + found->second);
  return static_cast<Enum>(at - names.begin());
}

void flip_bit(const torch::Tensor& t) { static_cast<std::uint8_t*>(t.mutable_data_ptr())[2] ^= 1; }
void make_nan(const torch::Tensor& t) { t.data().fill_(std::nan("")); }

train::TrainerOptions options_of(const Arguments& arguments, const std::string& folder) {
  train::TrainerOptions options;
  train::Strategy& strategy = options.strategy;
  strategy.kind = train::Strategy::Kind::kMultiWorkerMirrored;
  if (arguments.contains("way")) {
    const auto way = std::ranges::find(ways(), arguments.at("way"), &Way::name);
    if (way == ways().end()) throw std::invalid_argument("way=" + arguments.at("way"));
    strategy = way->strategy;
  }
  strategy.kind = named(arguments, "strategy", parallel::strategy_names(), strategy.kind);
  strategy.parameters =
      named(arguments, "parameters", parallel::parameter_names(), strategy.parameters);
  strategy.stage = static_cast<int>(number(arguments, "stage", strategy.stage));
  strategy.hybrid = number(arguments, "hybrid", strategy.hybrid) != 0;
  strategy.pipeline = static_cast<int>(number(arguments, "pipeline", 1));
  strategy.tensor = static_cast<int>(number(arguments, "tensor", 1));
  options.gradients.reducer =
      named(arguments, "reducer", {"auto", "ring", "hierarchical", "reduce_to_one", "adasum"},
            train::Reducer::kAuto);
  const auto codecs = codec_names();
  options.gradients.codec =
      named(arguments, "compression", {codecs.begin(), codecs.end()}, Codec::kNone);
  options.gradients.bucket_bytes = number(arguments, "bucket_bytes", 0);
  options.gradients.deterministic = number(arguments, "deterministic", 0) != 0;
  options.sharding =
      named(arguments, "sharding", data::sharding_names(), data::Sharding::kShuffled);
  options.micro_batches = number(arguments, "micro_batches", 1);
  options.logical_shards = number(arguments, "logical_shards", 0);
  options.name = "toy";
  options.steps = number(arguments, "steps", 0);
  options.epochs = number(arguments, "epochs", 2);
  options.global_batch = number(arguments, "batch", 12);
  options.log_every = 1;
  options.seed = 11;
  options.clip_norm = number(arguments, "clip", 1) != 0 ? 0.5 : 0;
  options.verify_every = number(arguments, "verify_every", 0);
  options.resume = number(arguments, "resume", 0) != 0;
  options.optimizer = {.lr = 0.05, .momentum = 0.9};
  if (number(arguments, "adamw", 0) != 0) {
    options.optimizer = {.kind = train::OptimizerOptions::Kind::kAdamW, .lr = 0.01};
  }
  options.loss_scale.initial_scale = static_cast<double>(number(arguments, "loss_scale", 65536));
  options.loss_scale.growth_interval = number(arguments, "growth_interval", 2000);
  if (number(arguments, "checkpoint", 0) != 0) options.checkpoint.directory = folder + "/ckpt";
  options.checkpoint.every = number(arguments, "checkpoint_every", 0);
  return options;
}

int run(train::Trainer& trainer, const Arguments& arguments, FileObserver& observer) {
  trainer.set_observer(&observer);
  trainer.verify_state(number(arguments, "verify_state", 0));
  const Result<observe::EndRecord> end = trainer.run();
  observer.end(end);
  if (end.ok()) return 0;
  return trainer.interrupt_signal() != 0 ? 128 + trainer.interrupt_signal() : 1;
}

torch::ScalarType parameter_type(const Arguments& arguments) {
  return arguments.contains("precision") ? torch::kFloat32 : torch::kFloat64;
}

std::shared_ptr<data::Dataset> held_out(const Arguments& arguments) {
  return std::make_shared<EventfulDataset>(31, -1, "", "/dev/null", parameter_type(arguments));
}

/// A loss whose gradient is infinite in the third pass.
torch::Tensor overflowing_loss(const torch::Tensor& output, const torch::Tensor& target,
                               int& calls) {
  if (++calls == 3) {
    output.register_hook([](const torch::Tensor& g) { return g / torch::zeros_like(g); });
  }
  return model::cross_entropy(output, target);
}

/// A chain of segments, which every strategy can train, and what it is trained and tested on.
struct ChainProblem {
  model::ModelOptions model;
  std::shared_ptr<const data::Dataset> train, test;
};

std::shared_ptr<data::Dataset> toy_images(std::int64_t samples) {
  const torch::Tensor images = toy_numbers({samples, 1, 28, 28});
  return std::make_shared<RowsDataset>(images,
                                       (images.select(2, 0).sum({1, 2}) > 0).to(torch::kInt64));
}

std::shared_ptr<data::Dataset> toy_texts(std::int64_t samples) {
  const torch::Tensor texts = (toy_numbers({samples, 9}) * 4).to(torch::kInt64).remainder(19);
  return std::make_shared<RowsDataset>(texts.slice(1, 0, 8), texts.slice(1, 1));
}

ChainProblem chain_problem(const Arguments& arguments,
                           std::shared_ptr<const data::Dataset> points) {
  const std::string& name = arguments.at("model");
  if (name == "cnn") return {{.kind = "cnn", .classes = 2}, toy_images(47), toy_images(31)};
  if (name == "gpt") {
    return {{.kind = "gpt", .layers = 2, .heads = 2, .width = 32, .context = 8, .vocabulary = 19},
            toy_texts(47),
            toy_texts(31)};
  }
  return {{.kind = "mlp", .sizes = {20, 130, 70, 3}}, std::move(points), held_out(arguments)};
}

int train_chain(World& world, const Arguments& arguments, const std::string& folder,
                FileObserver& observer, const std::shared_ptr<data::Dataset>& points) {
  const ChainProblem problem = chain_problem(arguments, points);
  torch::manual_seed(3 + static_cast<std::uint64_t>(world.rank()));
  const auto chain = model::make_model(problem.model).take_or_throw();
  chain->to(parameter_type(arguments));
  train::Task task;
  task.module = chain;
  task.forward = [chain](const torch::Tensor& x) { return chain->forward(x); };
  task.loss = model::cross_entropy;
  task.split_loss = [classes = problem.model.vocabulary](const torch::Tensor& part,
                                                         const torch::Tensor& target,
                                                         const tensor::TensorParallelGroup& ranks) {
    return model::split_cross_entropy(part, target, classes, &ranks);
  };
  task.correct = model::count_correct;
  task.shape = chain->shape();
  if (arguments.contains("precision") && arguments.at("precision") != "float32") {
    task.autocast = arguments.at("precision") == "float16" ? torch::kHalf : torch::kBFloat16;
  }
  if (number(arguments, "overflow_rank", -1) == world.rank()) {
    task.loss = [calls = 0](const torch::Tensor& output, const torch::Tensor& target) mutable {
      return overflowing_loss(output, target, calls);
    };
  }
  train::Trainer trainer(world, task, problem.train, {{"test", problem.test, 7}},
                         options_of(arguments, folder));
  const int code = run(trainer, arguments, observer);
  if (code != 0) return code;
  // the module has its values again, whatever they were cut into
  const torch::NoGradGuard no_grad;
  const std::int64_t first = 0;
  const torch::Tensor output = chain->forward(problem.test->get({&first, 1}, 0).input);
  return output.isfinite().all().item<bool>() ? 0 : 1;
}

/// FOLDER key=value ...
int train_once(World& world, std::span<const std::string> words) {
  const std::string& folder = words.front();
  Arguments arguments;
  for (const std::string& word : words.subspan(1)) {
    const auto equals = word.find('=');
    arguments[word.substr(0, equals)] = word.substr(equals + 1);
  }
  FileObserver observer(folder + "/rank-" + std::to_string(world.rank()));
  const bool eventful = number(arguments, "event_rank", -1) == world.rank();
  const auto dataset = std::make_shared<EventfulDataset>(
      number(arguments, "samples", 47), eventful ? number(arguments, "event_call", 4) : -1,
      eventful ? arguments["event"] : "", folder + "/samples-" + std::to_string(world.rank()),
      parameter_type(arguments));
  // Different on every rank: the first broadcast has to make them equal.
  if (arguments.contains("model")) return train_chain(world, arguments, folder, observer, dataset);
  auto module = make_toy_module(3 + static_cast<std::uint64_t>(world.rank()),
                                static_cast<double>(number(arguments, "dropout", 0)) / 100);
  train::Task task = toy_task(module);
  if (number(arguments, "drift_rank", -1) == world.rank()) {
    const auto spoil = number(arguments, "drift_nan", 0) != 0 ? make_nan : flip_bit;
    task.loss = [module, spoil, calls = 0](const torch::Tensor& output,
                                           const torch::Tensor& target) mutable {
      if (++calls == 3) spoil(module->last->bias);
      return model::cross_entropy(output, target);
    };
  }
  train::Trainer trainer(world, task, dataset, {{"test", held_out(arguments), 7}},
                         options_of(arguments, folder));
  return run(trainer, arguments, observer);
}

}  // namespace

int train_scenario(const std::vector<std::string>& words) {
  World world = init();
  for (auto at = words.begin(); at != words.end();) {
    const auto next = std::find(at + 1, words.end(), "train");
    const int code = train_once(world, {at + 1, next});
    if (code != 0) return code;
    at = next;
  }
  return 0;
}

}  // namespace stormo::test
