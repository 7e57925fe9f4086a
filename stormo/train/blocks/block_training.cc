#include <stormo/train/blocks/block_training.h>

#include <torch/autograd.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

namespace stormo::train {
namespace {

torch::Tensor as_tensor(std::span<const double> values, const torch::Tensor& like) {
  return torch::tensor(c10::ArrayRef<double>(values.data(), values.size()), torch::kFloat64)
      .view(like.sizes())
      .to(like.scalar_type());
}

/// to += factor * from
void add_to(const torch::Tensor& from, double factor, std::span<double> to) {
  const torch::Tensor values = from.to(torch::kFloat64).contiguous();
  const double* begin = values.const_data_ptr<double>();
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += factor * begin[i];
}

double dot(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace

Result<std::unique_ptr<BlockTraining>> BlockTraining::make(Task task, const data::Dataset& data,
                                                           const BlockTrainingOptions& options,
                                                           int worker, int workers) {
  std::string wrong;
  const auto need = [&wrong](bool holds, const std::string& text) {
    if (!holds) wrong += (wrong.empty() ? "" : "\n") + text;
  };
  need(options.rate > 0 && std::isfinite(options.rate), "rate: a number greater than 0");
  need(options.batch >= 0, "batch: at least 1 sample, or 0 for all");
  need(options.units >= 1, "units: at least 1");
  need(data.size() >= workers, "no samples are left for a worker: there are " +
                                   std::to_string(data.size()) + " for " + std::to_string(workers));
  need(options.batch <= 0 || options.batch >= workers,
       "batch: " + std::to_string(options.batch) + " samples are fewer than one for each of " +
           std::to_string(workers) + " workers");
  if (!wrong.empty()) return invalid_argument(wrong);
  std::unique_ptr<BlockTraining> out(
      new BlockTraining(std::move(task), data, options, worker, workers));
  if (out->blocks_.empty()) return invalid_argument("the module has no parameters to train");
  return out;
}

BlockTraining::BlockTraining(Task task, const data::Dataset& data,
                             const BlockTrainingOptions& options, int worker, int workers)
    : task_(std::move(task)),
      data_(data),
      options_(options),
      worker_(worker),
      workers_(workers),
      sampler_(data.size(), options.batch == 0 ? data.size() : options.batch, options.seed,
               /*shuffle=*/true, worker, workers) {
  sampler_.balance(data.lengths());
  for (const torch::Tensor& parameter : task_.module->parameters()) {
    if (!parameter.requires_grad() || parameter.numel() == 0) continue;
    cut(parameter, parameters_.size());
    parameters_.push_back(parameter);
  }
}

void BlockTraining::cut(const torch::Tensor& parameter, std::size_t index) {
  const std::int64_t all = parameter.dim() > 1 ? parameter.size(0) : 1;  // a vector is one block
  const std::int64_t each = parameter.numel() / all;
  for (std::int64_t begin = 0; begin < all; begin += options_.units) {
    const std::int64_t units = std::min(options_.units, all - begin);
    blocks_.push_back({.parameter = index,
                       .begin = begin,
                       .units = units,
                       .elements = static_cast<std::size_t>(units * each)});
  }
}

torch::Tensor BlockTraining::slice_of(const Block& b, const torch::Tensor& tensor) const {
  return tensor.dim() > 1 ? tensor.narrow(0, b.begin, b.units) : tensor;
}

std::size_t BlockTraining::value_size(std::span<const std::int64_t> blocks) const {
  std::size_t size = 0;
  for (const std::int64_t b : blocks) size += block(b).elements;
  return size;
}

void BlockTraining::load() {
  const data::Sampler::Slice slice = sampler_.slice(cursor_);
  cursor_ = slice.next;
  batch_ = data_.get(slice.indices, slice.epoch);
}

void BlockTraining::forward(std::span<const std::int64_t> blocks) {
  if (!blocks.empty() && batch_.size() > 0) output_ = task_.forward(batch_.input);
}

void BlockTraining::loss() {
  if (output_.defined()) loss_ = task_.loss(std::exchange(output_, {}), batch_.target);
}

void BlockTraining::backward(std::span<const std::int64_t> blocks, std::span<double> part) {
  std::ranges::fill(part, 0.0);
  add_gradients(blocks, part);
}

void BlockTraining::add_gradients(std::span<const std::int64_t> blocks, std::span<double> part) {
  const auto samples = static_cast<double>(std::exchange(batch_, {}).size());
  part.back() += samples;
  const torch::Tensor loss = std::exchange(loss_, {});
  if (!loss.defined()) return;
  std::vector<torch::Tensor> inputs;  // the parameters of the round, each once
  std::vector<std::optional<std::size_t>> place(parameters_.size());
  for (const std::int64_t b : blocks) {
    auto& at = place[block(b).parameter];
    if (at) continue;
    at = inputs.size();
    inputs.push_back(parameters_[block(b).parameter]);
  }
  const auto gradients = torch::autograd::grad({loss}, inputs, {}, /*retain_graph=*/std::nullopt,
                                               /*create_graph=*/false, /*allow_unused=*/true);
  for (const std::int64_t b : blocks) {
    const torch::Tensor& gradient = gradients[*place[block(b).parameter]];
    const std::span<double> mine = part.first(block(b).elements);
    if (gradient.defined()) add_to(slice_of(block(b), gradient), samples, mine);
    part = part.subspan(mine.size());
  }
}

void BlockTraining::for_all_samples(const std::function<void(const data::Batch&)>& use) const {
  constexpr std::int64_t kTogether = 256;
  std::vector<std::int64_t> indices;
  for (std::int64_t i = worker_; i < data_.size(); i += workers_) {
    indices.push_back(i);
    if (std::ssize(indices) < kTogether && i + workers_ < data_.size()) continue;
    use(data_.get(indices, 0));
    indices.clear();
  }
}

void BlockTraining::all_gradients(std::span<double> part) {
  std::vector<std::int64_t> all(blocks_.size());
  std::iota(all.begin(), all.end(), 0);
  std::ranges::fill(part, 0.0);
  for_all_samples([&](const data::Batch& batch) {
    batch_ = batch;
    forward(all);
    loss();
    add_gradients(all, part);
  });
}

void BlockTraining::aggregate(std::span<const std::int64_t> blocks, std::span<const double> sums,
                              std::span<double> values, std::span<double> changes) const {
  const double factor = options_.rate / sums.back();  // of all workers' samples
  std::ranges::fill(values, 0.0);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const Block& b = block(blocks[i]);
    add_to(slice_of(b, parameters_[b.parameter].detach()), 1, values.first(b.elements));
    for (std::size_t e = 0; e < b.elements; ++e) values[e] -= factor * sums[e];
    changes[i] = factor * std::sqrt(dot(sums.first(b.elements), sums.first(b.elements)));
    values = values.subspan(b.elements);
    sums = sums.subspan(b.elements);
  }
}

void BlockTraining::set(std::span<const std::int64_t> blocks, std::span<const double> values) {
  const torch::NoGradGuard no_grad;
  for (const std::int64_t index : blocks) {
    const Block& b = block(index);
    torch::Tensor slice = slice_of(b, parameters_[b.parameter]);
    slice.copy_(as_tensor(values.first(b.elements), slice));
    values = values.subspan(b.elements);
  }
}

void BlockTraining::judged_part(std::span<double> part) const {
  const torch::NoGradGuard no_grad;
  std::ranges::fill(part, 0.0);
  task_.module->eval();
  for_all_samples([&](const data::Batch& batch) {
    const auto samples = static_cast<double>(batch.size());
    part[0] += samples * task_.loss(task_.forward(batch.input), batch.target).item<double>();
    part[1] += samples;
  });
  task_.module->train();
}

strads::Judgement BlockTraining::judge(std::span<const double> sums) const {
  return {.objective = sums[0] / sums[1]};
}

protocol::Conflicts BlockTraining::correlated_gradients(std::span<const double> sums,
                                                        double threshold) const {
  std::vector<std::span<const double>> gradients;
  for (const Block& b : blocks_) {
    gradients.push_back(sums.first(b.elements));
    sums = sums.subspan(b.elements);
  }
  std::vector<protocol::Conflicts::Pair> pairs;
  for (std::size_t a = 0; a < blocks_.size(); ++a) {
    for (std::size_t c = a + 1; c < blocks_.size(); ++c) {
      if (blocks_[a].parameter != blocks_[c].parameter) break;   // blocks are in their order
      if (blocks_[a].elements != blocks_[c].elements) continue;  // the last one may be smaller
      const double norms =
          std::sqrt(dot(gradients[a], gradients[a]) * dot(gradients[c], gradients[c]));
      if (norms > 0 && std::abs(dot(gradients[a], gradients[c])) >= threshold * norms) {
        pairs.push_back({static_cast<std::int32_t>(a), static_cast<std::int32_t>(c)});
      }
    }
  }
  return protocol::Conflicts::of(blocks(), pairs).take_or_throw();
}

void BlockTraining::copy_values(const BlockTraining& from) {
  const torch::NoGradGuard no_grad;
  for (std::size_t p = 0; p < parameters_.size(); ++p) parameters_[p].copy_(from.parameters_[p]);
}

}  // namespace stormo::train
