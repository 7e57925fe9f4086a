#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <torch/types.h>

#include <stormo/base/status.h>
#include <stormo/data/dataset.h>
#include <stormo/data/sampler.h>
#include <stormo/protocol/strads/conflicts.h>
#include <stormo/strads/block_program.h>
#include <stormo/train/parameters/model_parameters.h>
#include <stormo/train/task.h>

namespace stormo::train {

struct BlockTrainingOptions {
  double rate = 0.1;       ///< learning rate of plain SGD
  std::int64_t batch = 0;  ///< samples of a round over all workers; 0: all
  std::int64_t units = 1;  ///< of a parameter in a block: slices along its first dimension
  std::uint64_t seed = 1;  ///< of the order of samples
};

/// A worker's part of training in which each round updates only some blocks of parameters
/// (docs/strads.md). The batches are those of data::Sampler, so of `stormo train` too. The part of
/// a round is the sum of the gradients of the worker's samples for these blocks, and the number of
/// samples; a block changes by rate * mean gradient, and weighs the norm of that. The backward pass
/// goes no further down than to the lowest parameter of the round.
class BlockTraining final : public strads::BlockProgram {
 public:
  /// The task's module holds this worker's values, which must be equal on all workers at first.
  /// Borrows `data`. kInvalidArgument for options out of range, a worker without samples, and a
  /// module without trainable parameters.
  static Result<std::unique_ptr<BlockTraining>> make(Task task, const data::Dataset& data,
                                                     const BlockTrainingOptions& options,
                                                     int worker, int workers);

  /// Pairs of blocks of the same parameter whose gradients have |cosine| >= threshold: units that
  /// learn the same from the same samples. `sums`: over all workers, of their parts of all blocks.
  /// Blocks of different parameters are in no conflict. Cost: a dot product for each pair.
  protocol::Conflicts correlated_gradients(std::span<const double> sums, double threshold) const;
  /// The worker's part of all blocks, of all samples of the data: for conflicts. Cost: a pass.
  void all_gradients(std::span<double> part);

  /// Samples used in rounds, over all workers: what the next round begins with.
  std::int64_t samples() const { return cursor_; }
  void go_on_from(std::int64_t samples) { cursor_ = samples; }
  /// Sets the values of another worker.
  void copy_values(const BlockTraining& from);

  plan::ModelShape variables() const override { return shape_of(task_); }
  std::int64_t blocks() const override { return std::ssize(blocks_); }
  std::size_t part_size(std::span<const std::int64_t> blocks) const override {
    return value_size(blocks) + 1;
  }
  std::size_t value_size(std::span<const std::int64_t> blocks) const override;
  void load() override;
  void forward(std::span<const std::int64_t> blocks) override;
  void loss() override;
  void backward(std::span<const std::int64_t> blocks, std::span<double> part) override;
  void aggregate(std::span<const std::int64_t> blocks, std::span<const double> sums,
                 std::span<double> values, std::span<double> changes) const override;
  void set(std::span<const std::int64_t> blocks, std::span<const double> values) override;

  /// The objective is the mean loss over all samples.
  std::size_t judged_size() const override { return 2; }
  void judged_part(std::span<double> part) const override;
  strads::Judgement judge(std::span<const double> sums) const override;

 private:
  struct Block {
    std::size_t parameter = 0;
    std::int64_t begin = 0, units = 0;  // along the first dimension
    std::size_t elements = 0;
  };
  BlockTraining(Task task, const data::Dataset& data, const BlockTrainingOptions& options,
                int worker, int workers);
  void cut(const torch::Tensor& parameter, std::size_t index);
  const Block& block(std::int64_t b) const { return blocks_[static_cast<std::size_t>(b)]; }
  /// A view.
  torch::Tensor slice_of(const Block& block, const torch::Tensor& tensor) const;
  /// Adds the gradients of the present batch to a part.
  void add_gradients(std::span<const std::int64_t> blocks, std::span<double> part);
  /// Calls `use` with the worker's share of all samples, a few at a time.
  void for_all_samples(const std::function<void(const data::Batch&)>& use) const;

  Task task_;
  const data::Dataset& data_;
  BlockTrainingOptions options_;
  int worker_, workers_;
  std::vector<torch::Tensor> parameters_;
  std::vector<Block> blocks_;
  data::Sampler sampler_;
  std::int64_t cursor_ = 0;
  data::Batch batch_;            // from its load until its backward
  torch::Tensor output_, loss_;  // undefined: nothing is to be computed of it
};

}  // namespace stormo::train
