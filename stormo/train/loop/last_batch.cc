#include <stormo/train/loop/last_batch.h>

#include <algorithm>
#include <array>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/modules/batchnorm.h>

#include <stormo/model/chain.h>
#include <stormo/tensor/generator.h>
#include <stormo/train/parameters/model_parameters.h>

namespace stormo::train {
namespace {

/// Sizes of equal parts of n, of which the first n % parts are larger by one.
std::array<std::int64_t, 2> shares(std::int64_t n, std::int64_t parts) {
  return {n / parts, n / parts + (n % parts != 0 ? 1 : 0)};
}

bool lacks_values(const torch::nn::Module& module) {
  const auto* chain = dynamic_cast<const model::Chain*>(&module);
  return chain != nullptr && chain->lacks_values();
}

/// Restores what a forward in training changes, besides what the module's own code may change.
class Unchanged {
 public:
  explicit Unchanged(torch::nn::Module& module)
      : module_(module), trained_(module.is_training()), buffers_(module.buffers()) {
    for (const torch::Tensor& b : buffers_) before_.push_back(b.clone());
    module_.train();
  }
  ~Unchanged() {
    for (std::size_t i = 0; i < buffers_.size(); ++i) buffers_[i].copy_(before_[i]);
    module_.train(trained_);
  }
  Unchanged(const Unchanged&) = delete;
  Unchanged& operator=(const Unchanged&) = delete;

 private:
  const torch::NoGradGuard no_grad_;
  torch::nn::Module& module_;
  const torch::Device device_ = device_of(module_);
  const tensor::GeneratorAt generator_{tensor::generator_state(device_), device_};
  bool trained_;
  std::vector<torch::Tensor> buffers_, before_;
};

/// Why the forward of these samples fails; empty if it does not.
std::string failure(const Task& task, const data::Dataset& data,
                    const std::vector<std::int64_t>& samples) {
  try {
    task.forward(data.get(samples, /*epoch=*/0).to(device_of(*task.module)).input);
    return {};
  } catch (const std::exception& e) {
    const std::string what = e.what();
    return what.substr(0, what.find('\n'));  // without libtorch's stack trace
  }
}

}  // namespace

bool has_batch_norm(const torch::nn::Module& module) {
  return std::ranges::any_of(module.modules(), [](const auto& m) {
    return m->template as<torch::nn::BatchNorm1d>() != nullptr ||
           m->template as<torch::nn::BatchNorm2d>() != nullptr ||
           m->template as<torch::nn::BatchNorm3d>() != nullptr;
  });
}

bool computes_single_samples(const TrainerOptions& options, std::int64_t samples,
                             std::int64_t parts) {
  const std::int64_t batch = options.global_batch;
  const auto has_one = [&](std::int64_t n) {
    return n > 0 && std::ranges::any_of(shares(n, parts), [&](std::int64_t share) {
             const auto sizes = shares(share, options.micro_batches);
             return share > 0 && std::ranges::find(sizes, 1) != sizes.end();
           });
  };
  const bool comes_to_end = options.steps == 0 || options.steps > samples / batch;
  return has_one(std::min(batch, samples)) ||
         (comes_to_end && samples > batch && has_one(samples % batch));
}

std::int64_t batch_without_single_samples(const TrainerOptions& options, std::int64_t samples,
                                          std::int64_t parts) {
  TrainerOptions other = options;
  const auto fits = [&](std::int64_t batch) {
    other.global_batch = batch;
    return batch >= parts && data::fits(options.sharding, {static_cast<int>(parts), batch}) &&
           !computes_single_samples(other, samples, parts);
  };
  const std::int64_t furthest = std::max(options.global_batch, samples);
  for (std::int64_t by = 1; by <= furthest; ++by) {
    if (fits(options.global_batch - by)) return options.global_batch - by;
    if (options.global_batch + by <= samples && fits(options.global_batch + by)) {
      return options.global_batch + by;
    }
  }
  return 0;
}

Status check_single_samples(const Task& task, const data::Dataset& data,
                            const TrainerOptions& options, std::int64_t parts) {
  if (!has_batch_norm(*task.module) || lacks_values(*task.module) || data.size() < 2 ||
      !computes_single_samples(options, data.size(), parts)) {
    return {};
  }
  const Unchanged unchanged(*task.module);
  const std::string why = failure(task, data, {0});
  if (why.empty() || !failure(task, data, {0, 1}).empty()) return {};
  const std::int64_t batch = batch_without_single_samples(options, data.size(), parts);
  return invalid_argument(
      "the model has BatchNorm and cannot compute a batch of one sample (" + why +
      "), and with a global batch of " + std::to_string(options.global_batch) + ", " +
      std::to_string(parts) + " parts and " + std::to_string(options.micro_batches) +
      " micro-batches a rank comes to one; " +
      (batch > 0 ? "write a global batch of " + std::to_string(batch) + ", or " : "") +
      "leave out samples with data::Subset");
}

}  // namespace stormo::train
