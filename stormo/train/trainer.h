#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include <stormo/base/event.h>
#include <stormo/comm/communicator.h>
#include <stormo/data/dataset.h>
#include <stormo/observe/records.h>
#include <stormo/plan/step_plan.h>
#include <stormo/train/options.h>

namespace stormo::train {

/// What is trained: a module and how a batch becomes a loss.
struct Task {
  std::shared_ptr<torch::nn::Module> module;
  std::function<torch::Tensor(const torch::Tensor& input)> forward;
  /// Mean over the samples of the batch: scalar, differentiable.
  std::function<torch::Tensor(const torch::Tensor& output, const torch::Tensor& target)> loss;
  /// Number of right answers, where that has a meaning.
  std::function<std::int64_t(const torch::Tensor& output, const torch::Tensor& target)> correct;
  /// A sample to show at the end (generated text); rank 0 only.
  std::function<std::string()> sample;
  /// Segments, for plans; default: the whole module is one.
  std::optional<plan::ModelShape> shape;
};

/// A held-out part of the data, evaluated on all ranks (every sample exactly once).
struct EvalSplit {
  std::string name;  ///< "validation", "test"
  std::shared_ptr<const data::Dataset> dataset;
  std::int64_t batch = 256;        ///< per rank
};

/// Trains `task` on all ranks of `world` as `options` says: composes the StepPlan, runs it, logs,
/// evaluates, saves. The same call on every rank.
class Trainer {
 public:
  Trainer(comm::Communicator& world, Task task, std::shared_ptr<const data::Dataset> train,
          std::vector<EvalSplit> splits, TrainerOptions options);
  ~Trainer();

  /// Rank 0's observer prints; others are ignored. Not owned.
  void set_observer(observe::RunObserver* observer);
  /// Receives this rank's Events. Not owned.
  void set_sink(Sink* sink);
  /// The plan that run() will execute.
  const plan::StepPlan& plan() const;
  /// Blocks until the run is over. kInterrupted after a signal, with the checkpoint saved; throws
  /// nothing.
  Result<observe::EndRecord> run();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace stormo::train
