#include <stormo/train/optimizer/fused_optimizer.h>

#include <algorithm>
#include <cmath>

#include <stormo/base/check.h>
#include <stormo/tensor/dtype.h>
#include <stormo/tensor/parallel_for.h>

namespace stormo::train {
namespace {

// Fewer elements than these are not worth waking threads for.
constexpr std::int64_t kGrain = 32768;
// Norms are added up block by block, in their order: the sum does not depend on the threads.
constexpr std::int64_t kNormBlock = 65536;

bool is_half(const torch::Tensor& t) {
  return t.scalar_type() == torch::kBFloat16 || t.scalar_type() == torch::kFloat16;
}

DType dtype_of(const torch::Tensor& t) {
  const Result<DType> type = tensor::dtype_of(t.scalar_type());
  throw_if_error(type.status());
  return *type;
}

char* element(const torch::Tensor& t, std::int64_t i) {
  return static_cast<char*>(t.data_ptr()) + i * static_cast<std::int64_t>(t.element_size());
}

}  // namespace

void FusedOptimizer::check_parameter(std::size_t i) const {
  const NamedParameter& p = parameters_[i];
  const OwnedRange& range = owned_[i];
  const torch::Device device = parameters_.front().tensor.device();
  if (p.tensor.device() != device || !p.tensor.is_floating_point()) {
    throw Error(invalid_argument("parameter '" + p.name + "' is " + p.tensor.toString() + " on " +
                                 p.tensor.device().str() +
                                 "; updates need floating point numbers, all on " + device.str()));
  }
  const bool inside = 0 <= range.begin && range.begin <= range.end && range.end <= p.tensor.numel();
  const bool fits = !range.weights.defined() || (range.weights.is_contiguous() &&
                                                 range.weights.numel() == range.end - range.begin);
  if (!inside || !fits) {
    throw Error(invalid_argument("the owned range of '" + p.name + "', [" +
                                 std::to_string(range.begin) + ", " + std::to_string(range.end) +
                                 "), does not lie in its " + std::to_string(p.tensor.numel()) +
                                 " elements, or its weights are not as many contiguous ones"));
  }
  const bool whole =
      p.tensor.dim() == 2 && numel(i) == p.tensor.numel() && !range.weights.defined();
  if (is_matrix(i) && !whole) {
    throw Error(invalid_argument("muon updates whole matrices, and '" + p.name +
                                 "' is none, or a part of it is here; keep whole parameters on "
                                 "each rank, or use another optimizer"));
  }
}

FusedOptimizer::FusedOptimizer(const OptimizerOptions& options,
                               std::vector<NamedParameter> parameters,
                               std::vector<OwnedRange> owned, SumOverRanks sum)
    : Optimizer(std::move(parameters)),
      options_(options),
      rest_(optim::rules_of(options).back()),
      owned_(std::move(owned)),
      sum_(std::move(sum)),
      update_float_(optim::update_of(rest_, DType::kFloat32)),
      update_double_(optim::update_of(rest_, DType::kFloat64)),
      states_(parameters_.size()) {
  if (owned_.empty()) {
    for (const NamedParameter& p : parameters_) owned_.push_back({.end = p.tensor.numel()});
  }
  if (owned_.size() != parameters_.size()) {
    throw Error(invalid_argument(std::to_string(owned_.size()) + " owned ranges for " +
                                 std::to_string(parameters_.size()) +
                                 " parameters; give one for each"));
  }
  for (std::size_t i = 0; i < owned_.size(); ++i) check_parameter(i);
}

// Points the piece at weights and slots.
void FusedOptimizer::add_weights(Work& work) {
  const std::size_t i = work.parameter;
  const OwnedRange& range = owned_[i];
  work.weights = range.weights.defined() ? range.weights : parameters_[i].tensor;
  if (!work.weights.is_contiguous()) {
    work.strided = work.weights;
    work.weights = work.weights.contiguous();
  }
  char* const weights =
      element(work.weights, work.first + (range.weights.defined() ? 0 : range.begin));

  create_state(i);
  const State& state = states_[i];
  const bool half = is_half(work.weights);
  work.piece.end = work.count;
  work.piece.dtype = half ? DType::kFloat32 : dtype_of(work.weights);
  const bool has_master = half && state.master.defined();
  work.piece.weights = has_master ? element(state.master, work.first) : weights;
  if (half) {
    work.piece.copy = weights;
    work.piece.copy_dtype = dtype_of(work.weights);
  }
  for (std::size_t s = 0; s < state.slots.size(); ++s) {
    if (state.slots[s].defined()) work.piece.slots[s] = element(state.slots[s], work.first);
  }
}

std::vector<FusedOptimizer::Work> FusedOptimizer::autograd_work(std::size_t first, std::size_t last,
                                                                bool with_matrices) {
  std::vector<Work> works;
  for (std::size_t i = first; i < last; ++i) {
    const torch::Tensor& gradient = parameters_[i].tensor.grad();
    if (!gradient.defined() || numel(i) == 0 || (is_matrix(i) && !with_matrices)) continue;
    if (takes_rows(i, gradient)) {
      add_rows(i, gradient.coalesce(), works);
      continue;
    }
    Work& work = works.emplace_back();
    work.parameter = i;
    work.count = numel(i);
    work.gradient = (gradient.is_sparse() ? gradient.to_dense() : gradient).contiguous();
    work.source.data = element(work.gradient, owned_[i].begin);
    work.piece.gradient_dtype = dtype_of(work.gradient);
  }
  for (Work& work : works) work.piece.gradients = {&work.source, 1};
  return works;
}

bool FusedOptimizer::takes_rows(std::size_t i, const torch::Tensor& gradient) const {
  const torch::Tensor& p = parameters_[i].tensor;
  return gradient.is_sparse() && gradient.sparse_dim() == 1 && p.is_contiguous() &&
         numel(i) == p.numel() && optim::leaves_rest_alone(options_);
}

/// A Work for each row of a coalesced gradient.
void FusedOptimizer::add_rows(std::size_t i, const torch::Tensor& gradient,
                              std::vector<Work>& works) const {
  const torch::Tensor rows = gradient.indices().select(0, 0).contiguous();
  const torch::Tensor values = gradient.values().contiguous();
  const std::int64_t width = values.numel() / std::max<std::int64_t>(values.size(0), 1);
  for (std::int64_t r = 0; r < values.size(0); ++r) {
    Work& work = works.emplace_back();
    work.parameter = i;
    work.first = rows.const_data_ptr<std::int64_t>()[r] * width;
    work.count = width;
    work.gradient = values;
    work.source.data = element(values, r * width);
    work.piece.gradient_dtype = dtype_of(values);
  }
}

std::vector<FusedOptimizer::Work> FusedOptimizer::range_work(
    std::span<const RangeGradient> gradients) {
  std::vector<Work> works;
  for (const RangeGradient& gradient : gradients) {
    if (numel(gradient.parameter) == 0) continue;
    Work& work = works.emplace_back();
    work.parameter = gradient.parameter;
    work.count = numel(gradient.parameter);
    work.piece.gradients = gradient.sources;
    work.piece.gradient_dtype = gradient.dtype;
  }
  return works;
}

Status FusedOptimizer::step(const StepRate& rate, std::size_t first, std::size_t last) {
  if (!on_host()) return step_by_tensors(rate, autograd_gradients(first, last), first, last);
  if (options_.kind == OptimizerOptions::Kind::kMuon) {
    std::vector<TensorGradient> matrices = autograd_gradients(first, last);
    std::erase_if(matrices, [this](const TensorGradient& g) { return !is_matrix(g.parameter); });
    STORMO_RETURN_IF_ERROR(step_by_tensors(rate, matrices, first, last));
  }
  std::vector<Work> works = autograd_work(first, last, /*with_matrices=*/false);
  return run(works, rate, first, last);
}

Status FusedOptimizer::step(const StepRate& rate, std::span<const RangeGradient> gradients) {
  std::vector<Work> works = range_work(gradients);
  return run(works, rate, 0, parameters_.size());
}

Status FusedOptimizer::step(const StepRate& rate, std::span<const TensorGradient> gradients) {
  if (!on_host()) return step_by_tensors(rate, gradients, 0, parameters_.size());
  std::vector<optim::GradientTerm> sources;
  for (const TensorGradient& g : gradients) sources.push_back({g.values.const_data_ptr()});
  std::vector<RangeGradient> ranges;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    ranges.push_back({gradients[i].parameter, {&sources[i], 1}, dtype_of(gradients[i].values)});
  }
  return step(rate, ranges);
}

Result<double> FusedOptimizer::gradient_norm() {
  return norm_of(squares_of_autograd([this](std::size_t i) { return owned_[i].counts; }));
}

double FusedOptimizer::gradient_squares(const std::function<bool(const std::string&)>& counts) {
  return squares_of_autograd([&](std::size_t i) { return counts(parameters_[i].name); });
}

double FusedOptimizer::squares_of_autograd(const std::function<bool(std::size_t)>& counts) {
  if (!on_host()) return squares_on_device(counts);
  std::vector<Work> works = autograd_work(0, parameters_.size(), /*with_matrices=*/true);
  return gradient_squares(works, counts);
}

Result<double> FusedOptimizer::gradient_norm(std::span<const RangeGradient> gradients) {
  std::vector<Work> works = range_work(gradients);
  return norm_of(gradient_squares(works, [this](std::size_t i) { return owned_[i].counts; }));
}

Status FusedOptimizer::check_types(const Work& work) const {
  // the state is of the type and size that the parameter had at its first step
  const State& state = states_[work.parameter];
  const auto type = type_of(work.parameter, "");
  bool fits = state.master.defined() == is_half(work.weights);
  fits = fits && (!state.master.defined() || state.master.is_cpu());
  for (const torch::Tensor& slot : state.slots) {
    fits = fits && (!slot.defined() || (slot.scalar_type() == type && slot.is_cpu()));
  }
  if (!owned_[work.parameter].weights.defined()) {
    fits = fits && owned_[work.parameter].end <= work.weights.numel();
  }
  if (!fits) {
    return invalid_argument("parameter '" + parameters_[work.parameter].name +
                            "' has another type, size or device than at its first step; make "
                            "another optimizer after such a change of a module");
  }
  const DType own = work.piece.dtype, gradient = work.piece.gradient_dtype;
  if (gradient == own || (own == DType::kFloat32 && size_of(gradient) == 2)) return {};
  return invalid_argument("gradient of '" + parameters_[work.parameter].name +
                          "': " + std::string(to_string(gradient)) + " cannot update " +
                          std::string(to_string(own)));
}

Status FusedOptimizer::check_rule() const {
  if (options_.kind != OptimizerOptions::Kind::kLbfgs) return {};
  return invalid_argument(
      "L-BFGS needs all parameters in one process; use make_optimizer() with replicas on one rank, "
      "or parameter servers with policy portions");
}

Status FusedOptimizer::begin(std::vector<Work>& works, const StepRate& rate) {
  STORMO_RETURN_IF_ERROR(check_rule());
  const Work* before = nullptr;
  for (Work& work : works) {
    if (is_matrix(work.parameter)) {
      return invalid_argument("muon updates '" + parameters_[work.parameter].name +
                              "' from the gradient that autograd has left, not from terms of it; "
                              "use another optimizer");
    }
    add_weights(work);
    State& state = states_[work.parameter];
    const std::tuple types{work.weights.scalar_type(), work.weights.numel(),
                           work.piece.gradient_dtype};
    if (state.checked != types) STORMO_RETURN_IF_ERROR(check_types(work));
    state.checked = types;
    const bool next_row = before != nullptr && before->parameter == work.parameter;
    if (!next_row) ++state.steps;
    before = &work;
    work.step = {.lr = rate.lr, .number = state.steps, .gradient_scale = rate.gradient_scale};
  }
  return {};
}

Result<std::vector<RangeUpdate>> FusedOptimizer::begin_step(
    const StepRate& rate, std::span<const RangeGradient> gradients) {
  STORMO_CHECK(!optim::needs_norms(options_.kind), "an update that needs norms is not in parts");
  const torch::NoGradGuard no_grad;
  std::vector<Work> works = range_work(gradients);
  STORMO_RETURN_IF_ERROR(begin(works, rate));
  std::vector<RangeUpdate> updates;
  for (const Work& work : works) {
    STORMO_CHECK(!work.strided.defined(), "a parameter that is updated in parts is contiguous");
    const auto update = work.piece.dtype == DType::kFloat64 ? update_double_ : update_float_;
    updates.push_back(
        {.parameter = work.parameter, .piece = work.piece, .step = work.step, .update = update});
  }
  return updates;
}

Status FusedOptimizer::run(std::vector<Work>& works, const StepRate& rate, std::size_t first,
                           std::size_t last) {
  const torch::NoGradGuard no_grad;
  STORMO_RETURN_IF_ERROR(begin(works, rate));
  std::int64_t total = 0;
  for (const Work& work : works) total += work.piece.end;
  if (optim::needs_norms(options_.kind)) {
    STORMO_RETURN_IF_ERROR(find_trust_ratios(works, first, last));
  }
  tensor::parallel_for(total, kGrain, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t passed = 0;
    for (const Work& work : works) {
      if (passed >= end) break;
      optim::UpdateRange part = work.piece;
      part.begin = std::max<std::int64_t>(begin - passed, 0);
      part.end = std::min(end - passed, work.piece.end);
      passed += work.piece.end;
      const auto update = part.dtype == DType::kFloat64 ? update_double_ : update_float_;
      if (part.begin < part.end) update(rest_, work.step, part);
    }
  });
  for (Work& work : works) {
    if (work.strided.defined()) {
      work.strided.copy_(work.weights);
    } else {
      work.weights.unsafeGetTensorImpl()->bump_version();  // written behind autograd's back
    }
  }
  return {};
}

std::vector<optim::SquareSums> FusedOptimizer::square_sums(
    const std::vector<Work>& works,
    const std::function<optim::SquareSums(const Work&, const optim::UpdateRange&)>& of) const {
  struct Block {
    std::size_t work;
    std::int64_t begin;
    optim::SquareSums sums;
  };
  std::vector<Block> blocks;
  std::int64_t total = 0;
  for (std::size_t w = 0; w < works.size(); ++w) {
    for (std::int64_t i = 0; i < works[w].count; i += kNormBlock) blocks.push_back({w, i, {}});
    total += works[w].count;
  }
  const auto count = static_cast<std::int64_t>(blocks.size());
  tensor::parallel_for(count, total < kGrain ? count : 1,
                       [&](std::int64_t begin, std::int64_t end) {
                         for (std::int64_t b = begin; b < end; ++b) {
                           Block& block = blocks[static_cast<std::size_t>(b)];
                           const Work& work = works[block.work];
                           optim::UpdateRange part = work.piece;
                           part.begin = block.begin;
                           part.end = std::min(block.begin + kNormBlock, work.count);
                           block.sums = of(work, part);
                         }
                       });
  std::vector<optim::SquareSums> sums(works.size());
  for (const Block& block : blocks) {
    sums[block.work].weights += block.sums.weights;
    sums[block.work].direction += block.sums.direction;
  }
  return sums;
}

// A collective of all owners, also of those that have nothing to update.
Status FusedOptimizer::find_trust_ratios(std::vector<Work>& works, std::size_t first,
                                         std::size_t last) {
  const auto mine = square_sums(works, [this](const Work& work, const optim::UpdateRange& part) {
    return optim::prepare(options_, work.step, part);
  });
  std::vector<std::size_t> parameters;
  for (const Work& work : works) parameters.push_back(work.parameter);
  STORMO_ASSIGN_OR_RETURN(const std::vector<double> ratios,
                          trust_ratios(parameters, mine, first, last));
  for (std::size_t w = 0; w < works.size(); ++w) works[w].step.trust_ratio = ratios[w];
  return {};
}

Result<std::vector<double>> FusedOptimizer::trust_ratios(std::span<const std::size_t> parameters,
                                                         std::span<const optim::SquareSums> mine,
                                                         std::size_t first,
                                                         std::size_t last) const {
  std::vector<double> sums(2 * (last - first));
  for (std::size_t k = 0; k < parameters.size(); ++k) {
    if (!owned_[parameters[k]].counts) continue;
    double* const of = &sums[2 * (parameters[k] - first)];
    of[0] = mine[k].weights;
    of[1] = mine[k].direction;
  }
  if (sum_) STORMO_RETURN_IF_ERROR(sum_(sums).within("norms of parameters"));
  std::vector<double> ratios;
  for (const std::size_t i : parameters) {
    const double* const whole = &sums[2 * (i - first)];
    ratios.push_back(optim::trust_ratio(options_, {.weights = whole[0], .direction = whole[1]}));
  }
  return ratios;
}

double FusedOptimizer::gradient_squares(std::vector<Work>& works,
                                        const std::function<bool(std::size_t)>& counts) const {
  for (Work& work : works) {
    work.piece.dtype =
        work.piece.gradient_dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  }
  const auto mine = square_sums(works, [](const Work&, const optim::UpdateRange& part) {
    return optim::SquareSums{.direction = optim::sum_gradients(part, nullptr)};
  });
  double sum = 0;
  for (std::size_t w = 0; w < works.size(); ++w) {
    if (counts(works[w].parameter)) sum += mine[w].direction;
  }
  return sum;
}

Result<double> FusedOptimizer::norm_of(double squares) const {
  if (sum_) STORMO_RETURN_IF_ERROR(sum_({&squares, 1}).within("norm of gradients"));
  return std::sqrt(squares);
}

}  // namespace stormo::train
