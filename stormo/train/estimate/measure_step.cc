#include <stormo/train/estimate/measure_step.h>

#include <time.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <utility>

#include <ATen/Parallel.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <stormo/comm/communicator.h>
#include <stormo/data/sampler.h>
#include <stormo/optim/options.h>
#include <stormo/parallel/computation/by_segment.h>
#include <stormo/parallel/one_device.h>
#include <stormo/parallel/pass.h>
#include <stormo/tensor/allocator.h>
#include <stormo/train/autograd/precision.h>
#include <stormo/train/estimate/model_pieces.h>
#include <stormo/train/parameters/model_parameters.h>
#include <stormo/train/step/lane_timer.h>
#include <stormo/train/step/runner.h>
#include <stormo/train/step/strategy.h>
#include <stormo/transport/memory/arena.h>

namespace stormo::train {
namespace {

using plan::Action;
using plan::Value;

constexpr int kWarmUp = 2;
constexpr int kMeasured = 7;

/// Adds up what this thread's tensors take and give back.
class TensorBytes final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, std::int64_t size, std::size_t, std::size_t, c10::Device) override {
    bytes_ += size;
  }
  bool memoryProfilingEnabled() const override { return true; }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::int64_t bytes_ = 0;
};

/// What has gone by since it was made, or was asked last: on the clock, but not more than this
/// thread has computed, where it is the only one that computes.
class Stopwatch {
 public:
  double seconds(bool computes) {
    const TimePoint clock = std::chrono::steady_clock::now();
    const double own = own_seconds();
    double out = std::chrono::duration<double>(clock - clock_).count();
    if (computes && alone_) out = std::min(out, own - own_);
    own_ = own_seconds();
    clock_ = std::chrono::steady_clock::now();
    return out;
  }

 private:
  static double own_seconds() {
    timespec t{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  }
  bool alone_ = at::get_num_threads() == 1;
  double own_ = own_seconds();
  TimePoint clock_ = std::chrono::steady_clock::now();
};

/// While it lives, the task's model computes what one of several ranks would, by itself.
class OneOfSeveral {
 public:
  OneOfSeveral(const Task& task, const Strategy& strategy,
               const std::vector<BorrowedParameter>& borrowed = {})
      : task_(task),
        chain_(std::dynamic_pointer_cast<model::Chain>(task.module)),
        alone_(tensor::TensorParallelGroup::alone(std::max(1, strategy.tensor),
                                                  strategy.sequence_parallel)) {
    if (chain_ == nullptr) return;
    if (strategy.context > 1) {
      positions_ = tensor::ContextGroup::alone(strategy.context, strategy.attention);
      chain_->compute_positions_with(&*positions_);
    }
    if (strategy.spatial.size() == 2) {
      places_ = tensor::Grid::alone(static_cast<int>(strategy.spatial[0]),
                                    static_cast<int>(strategy.spatial[1]));
      chain_->compute_places_with(&*places_);
    }
    if (strategy.tensor < 2) return;
    for (const torch::Tensor& p : chain_->parameters()) whole_.emplace_back(p, p.detach());
    for (auto [p, split] : borrowed) {
      if (!split) continue;
      whole_.emplace_back(p, p.detach());
      p.set_data(tensor::slice(p, *split, alone_.part()));
    }
    const bool has_parts = shape_of(task).segments.back().splits_output;
    parallelize(*chain_, alone_);
    task_.shape.reset();
    if (!has_parts || !task.split_loss) return;
    task_.loss = [this, loss = task.split_loss](const torch::Tensor& part,
                                                const torch::Tensor& target) {
      return loss(part, target, alone_);
    };
  }
  ~OneOfSeveral() {
    if (chain_ == nullptr) return;
    chain_->compute_positions_with(nullptr);
    chain_->compute_places_with(nullptr);
    chain_->compute_with(nullptr);
    for (auto& [parameter, values] : whole_) parameter.set_data(values);
  }
  OneOfSeveral(const OneOfSeveral&) = delete;
  OneOfSeveral& operator=(const OneOfSeveral&) = delete;

  const Task& task() const { return task_; }
  /// Slices, as if they were all.
  plan::ModelShape shape() const { return without_unused_forms(shape_of(task_), {}); }
  /// What it has of a batch.
  data::Batch part_of(data::Batch batch) const {
    if (places_) return {places_->take(batch.input), batch.target};
    if (!positions_) return batch;
    return {positions_->take(batch.input, 1), positions_->take(batch.target, 1)};
  }

 private:
  Task task_;
  std::shared_ptr<model::Chain> chain_;  // null: it computes all
  tensor::TensorParallelGroup alone_;
  std::optional<tensor::ContextGroup> positions_;
  std::optional<tensor::Grid> places_;
  std::vector<std::pair<torch::Tensor, torch::Tensor>> whole_;  // parameters, and their values
};

/// When the actions of a step were done, and what tensors took then.
struct Sample {
  std::vector<double> seconds;      // by action
  std::vector<std::int64_t> bytes;  // by action
};

double typical_seconds(const std::vector<Sample>& steps, std::size_t action) {
  std::vector<double> seconds;
  for (const Sample& s : steps) seconds.push_back(s.seconds[action]);
  return median(std::move(seconds));
}

/// Where a rank has its large tensors. Their memory is kept, and not given back to the system and
/// taken again in every step. Never freed, as tensors may outlive a measurement.
transport::Arena& arena() {
  static transport::Arena& all = transport::Arena::immortal(
      transport::Arena::create({.single_process = true}).take_or_throw());
  return all;
}

using Load = std::function<data::Batch()>;

/// The batches of an epoch, one after the other.
Load batches_of(const data::Dataset& dataset, const OneOfSeveral& one,
                const TrainerOptions& options, std::int64_t samples) {
  data::Sampler sampler(dataset.size(), samples, options.seed, /*shuffle=*/true, 0, 1);
  return [&dataset, &one, sampler, cursor = std::int64_t{0}]() mutable {
    const data::Sampler::Slice slice = sampler.slice(cursor);
    cursor = slice.next;
    return one.part_of(dataset.get(slice.indices, slice.epoch));
  };
}

/// The first samples.
data::Batch one_batch(const data::Dataset& dataset, std::int64_t samples) {
  std::vector<std::int64_t> some(static_cast<std::size_t>(std::min(samples, dataset.size())));
  std::iota(some.begin(), some.end(), 0);
  return dataset.get(some, /*epoch=*/0);
}

Result<std::vector<Sample>> run(const plan::StepPlan& plan, const OneOfSeveral& one,
                                const Load& load, const TrainerOptions& options,
                                const std::function<void()>& before_step) {
  const auto world = std::move(comm::make_inproc_group(1).take_or_throw()[0]);
  const AxisGroups groups(*world, plan);
  const auto store = make_store(plan, groups, one.task().module, options);
  const auto tensors = std::make_shared<TensorBytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, tensors);
  LaneTimer lanes(0);
  Sample now;
  Stopwatch watch;
  const auto done = [&](const Action& a) {
    // a load may wait for a disk
    now.seconds.push_back(watch.seconds(/*computes=*/!makes(a, Value::kBatch)));
    now.bytes.push_back(tensors->bytes());
  };
  STORMO_ASSIGN_OR_RETURN(
      const std::unique_ptr<Runner> runner,
      Runner::create(plan, 0,
                     {.load = [&load]() -> Result<data::Batch> { return load(); },
                      .task = one.task(),
                      .store = *store,
                      .lanes = lanes,
                      .done = done}));
  std::vector<Sample> out;
  for (int step = 0; step < kWarmUp + kMeasured; ++step) {
    now = {};
    if (before_step) before_step();
    static_cast<void>(watch.seconds(false));
    STORMO_RETURN_IF_ERROR(runner->step(/*learning_rate=*/0).status());
    if (step >= kWarmUp) out.push_back(now);
  }
  return out;
}

/// The times of backwards in two parts, segment by segment.
Status measure_parts(const plan::StepPlan& plan, const OneOfSeveral& one, const Load& load,
                     const TrainerOptions& options, const MeasureOptions& how,
                     analysis::ComputeTimes& times) {
  STORMO_ASSIGN_OR_RETURN(const plan::StepPlan parts,
                          parallel::compose(plan, parallel::in_two_parts()));
  STORMO_ASSIGN_OR_RETURN(const std::vector<Sample> steps,
                          run(parts, one, load, options, how.before_step));
  times.backward_input.assign(plan.model.segments.size(), 0);
  times.backward_weight = times.backward_input;
  for (std::size_t i = 0; i < parts.actions.size(); ++i) {
    const Action& a = parts.actions[i];
    const auto segment = static_cast<std::size_t>(a.range.first);
    const plan::ActionRow& row = row_of(a.kind);
    if (row.passes_gradient() == row.adds_gradients) continue;  // no part
    (row.passes_gradient() ? times.backward_input : times.backward_weight)[segment] =
        typical_seconds(steps, i);
  }
  return {};
}

/// Of a task whose model has values; `all`: its elements without the slices of `one`.
Result<StepMeasurement> measure(const OneOfSeveral& one, std::int64_t all, const Load& load,
                                const TrainerOptions& options, const MeasureOptions& how) {
  STORMO_ASSIGN_OR_RETURN(
      const plan::StepPlan plan,
      parallel::compose(parallel::one_device(one.shape()), parallel::by_segment()));
  STORMO_ASSIGN_OR_RETURN(const std::vector<Sample> steps,
                          run(plan, one, load, options, how.before_step));
  const double share = static_cast<double>(all) / static_cast<double>(num_elements(plan.model));
  // an update reads and writes weights and slots, and reads gradients
  const double passes = 3 + 2 * static_cast<double>(optim::num_slots(options.optimizer));
  const auto segments = plan.model.segments.size();
  StepMeasurement out;
  out.times.forward.resize(segments);
  out.times.backward.resize(segments);
  out.activations.resize(segments);
  for (std::size_t i = 0; i < plan.actions.size(); ++i) {
    const Action& a = plan.actions[i];
    const auto segment = static_cast<std::size_t>(a.range.first);
    const double typical = typical_seconds(steps, i);
    if (makes(a, Value::kBatch)) out.times.load = typical;
    if (makes(a, Value::kLoss)) out.times.loss = typical;
    if (makes(a, Value::kUpdated)) {
      out.times.update = out.times.norm = typical * share;
      out.times.gradient = out.times.update / passes;
    }
    if (row_of(a.kind).runs_forward()) {
      out.times.forward[segment] = typical;
      out.activations[segment] = steps.back().bytes[i] - steps.back().bytes[i - 1];
    }
    if (row_of(a.kind).adds_gradients) out.times.backward[segment] = typical;
  }
  if (how.in_parts) {
    STORMO_RETURN_IF_ERROR(measure_parts(plan, one, load, options, how, out.times));
  }
  return out;
}

/// Appends what was measured of the next piece of a model.
void append(StepMeasurement& all, StepMeasurement piece) {
  const auto join = [](auto& to, const auto& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  analysis::ComputeTimes &to = all.times, &from = piece.times;
  if (all.activations.empty()) {
    to.load = from.load;
  } else if (!from.backward_input.empty()) {
    // the first segment has its backward in one; with others before it, the parts take alike
    from.backward_input[0] = from.backward_weight[0] = from.backward[0] / 2;
  }
  join(to.forward, from.forward);
  join(to.backward, from.backward);
  join(to.backward_input, from.backward_input);
  join(to.backward_weight, from.backward_weight);
  join(all.activations, piece.activations);
  to.loss = from.loss;
  to.update += from.update;
  to.norm += from.norm;
  to.gradient += from.gradient;
}

/// The segments of a piece by themselves, with the loss of the task if the last one is among them.
Task task_of(const Task& whole, const std::shared_ptr<ChainPiece>& piece, bool has_last) {
  Task out;
  out.module = piece;
  out.forward = [piece](const torch::Tensor& x) { return piece->forward(x); };
  out.autocast = whole.autocast;
  out.loss = [](const torch::Tensor& output, const torch::Tensor&) { return output.mean(); };
  if (!has_last) return out;
  out.loss = whole.loss;
  out.split_loss = whole.split_loss;
  return out;
}

/// Each piece has values only while it is measured. It gets the output of the one before.
Result<StepMeasurement> measure_pieces(const Task& task, const model::Chain& chain,
                                       const std::vector<plan::Range>& pieces,
                                       const data::Dataset& dataset, const TrainerOptions& options,
                                       std::int64_t samples, const MeasureOptions& how) {
  StepMeasurement out;
  data::Batch batch;
  for (const plan::Range range : pieces) {
    const auto piece = std::make_shared<ChainPiece>(chain, range);
    const std::vector<BorrowedParameter> borrowed = borrowed_by(*piece, chain);
    std::vector<torch::Tensor> read = piece->parameters();
    for (const BorrowedParameter& b : borrowed) read.push_back(b.tensor);
    const PassingValues values(read);
    const Task of_piece = task_of(task, piece, range == pieces.back());
    const std::int64_t all = num_elements(shape_of(of_piece));
    const OneOfSeveral one(of_piece, options.strategy, borrowed);
    Load load = [&batch] { return data::Batch{batch.input.clone(), batch.target}; };
    if (range.first == 0) {
      load = batches_of(dataset, one, options, samples);
      batch = one.part_of(one_batch(dataset, samples));
    } else if (batch.input.is_floating_point()) {
      batch.input.requires_grad_();  // there are segments before
    }
    STORMO_ASSIGN_OR_RETURN(StepMeasurement of_segments, measure(one, all, load, options, how));
    append(out, std::move(of_segments));
    const torch::NoGradGuard no_grad;
    std::optional<Autocast> autocast;
    if (task.autocast) autocast.emplace(at::kCPU, *task.autocast);
    batch.input = piece->forward(batch.input.detach());
  }
  return out;
}

}  // namespace

std::vector<std::int64_t> output_bytes(const Task& task, const data::Dataset& dataset,
                                       std::int64_t samples) {
  torch::Tensor x = one_batch(dataset, samples).input;
  const torch::NoGradGuard no_grad;
  std::optional<Autocast> autocast;
  if (task.autocast) autocast.emplace(at::kCPU, *task.autocast);
  const auto chain = std::dynamic_pointer_cast<model::Chain>(task.module);
  if (chain == nullptr) return {static_cast<std::int64_t>(task.forward(x).nbytes())};
  std::vector<std::int64_t> out;
  for (const auto& segment : chain->segments()) {
    std::vector<torch::Tensor> read = segment->parameters();
    for (const torch::Tensor& p : segment->borrowed_parameters()) read.push_back(p);
    const PassingValues values(read);
    x = segment->forward(std::move(x));
    out.push_back(static_cast<std::int64_t>(x.nbytes()));
  }
  return out;
}

Result<StepMeasurement> measure_step(const Task& task, const data::Dataset& dataset,
                                     const TrainerOptions& options, std::int64_t samples,
                                     const MeasureOptions& how) {
  task.module->train();
  samples = std::min(samples, dataset.size());
  const tensor::ThreadArena large_tensors(arena());
  const auto chain = std::dynamic_pointer_cast<model::Chain>(task.module);
  const plan::ModelShape shape = shape_of(task);
  // values, gradients, and what the optimizer keeps
  const int numbers = 2 + static_cast<int>(optim::num_slots(options.optimizer));
  const std::vector<plan::Range> pieces = pieces_that_fit(shape, numbers, how.memory);
  const bool in_pieces = chain != nullptr && pieces.size() > 1 && chain->lacks_values();
  if (chain != nullptr && !in_pieces) chain->make_values();
  std::vector<std::int64_t> outputs = output_bytes(task, dataset, samples);
  const auto measured = [&]() -> Result<StepMeasurement> {
    if (in_pieces) {
      return measure_pieces(task, *chain, pieces, dataset, options, samples, how);
    }
    const OneOfSeveral one(task, options.strategy);
    return measure(one, num_elements(shape), batches_of(dataset, one, options, samples), options,
                   how);
  };
  STORMO_ASSIGN_OR_RETURN(StepMeasurement out, measured());
  out.outputs = std::move(outputs);
  return out;
}

}  // namespace stormo::train
