// What a Runner computes of a micro-batch, in pieces of segments, and what moves between pieces.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include <ATen/ops/stack.h>
#include <torch/csrc/autograd/custom_function.h>

#include <stormo/plan/project.h>
#include <stormo/tensor/generator.h>
#include <stormo/train/step/non_finite.h>
#include <stormo/train/step/runner.h>
#include <stormo/train/world/axis_groups.h>
#include <stormo/train/world/stage_link.h>

namespace stormo::train {

using plan::Action;
using plan::Value;

namespace {

/// Where the graph is cut: what a piece computes with is no leaf, so that its first operation may
/// be in place as in one graph. It shares memory and version with the output of the piece before.
struct Boundary : torch::autograd::Function<Boundary> {
  static torch::Tensor forward(torch::autograd::AutogradContext* /*context*/,
                               const torch::Tensor& x) {
    return x.detach();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 const torch::autograd::variable_list& gradients) {
    return gradients;
  }
};

Status changes_input(plan::Range segments, const std::string& so) {
  return Status(Code::kBadPlan, "segments " + std::to_string(segments.first) + "-" +
                                    std::to_string(segments.last) +
                                    " change their input in place, so " + so);
}

}  // namespace

Status Runner::load(const Action& /*action*/) {
  const Interval interval(parts_.lanes, Lane::kData, "load");
  if (assigned_) return load_assigned();
  STORMO_ASSIGN_OR_RETURN(data::Batch batch, parts_.load());
  if (context_ && batch.size() > 0) {
    batch = {context_->take(batch.input, 1), context_->take(batch.target, 1)};
  }
  if (grid_ && batch.size() > 0) batch.input = grid_->take(batch.input);
  if (!device_.is_cpu()) batch = batch.to(device_);
  batch_->number = loads_++;
  batch_->samples = batch_->counted = batch.size();
  batch_->learning_rate = learning_rate_;
  if (versions_) batch_->weights = versions_->newest();
  outcome_.samples = counts_samples_ ? batch.size() : 0;
  samples_loaded_ += batch.size();
  if (plan_.logical_shards > 0) return cut_into_shards(batch);
  if (plan_.micro_batches == 1) {
    batch_->micro_batches.push_back({.batch = batch, .pieces = {}, .loss = {}, .weights = {}});
    return {};
  }
  const auto inputs = batch.input.tensor_split(plan_.micro_batches);
  std::vector<torch::Tensor> targets(inputs.size());  // undefined where another rank has them
  if (batch.target.defined()) targets = batch.target.tensor_split(plan_.micro_batches);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    batch_->micro_batches.push_back(
        {.batch = {inputs[i], targets[i]}, .pieces = {}, .loss = {}, .weights = {}});
  }
  return {};
}

/// A rank with fewer shards than others has nothing in the last micro-batches. Each shard is a copy
/// that begins where allocations do: some kernels round differently at other addresses.
Status Runner::cut_into_shards(const data::Batch& batch) {
  batch_->counted = parts_.global_samples();
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(plan_.micro_batches));
  for (int i = 0; i < shards_.size(); ++i) {
    sizes[static_cast<std::size_t>(i)] =
        plan::samples_of_shard(batch_->counted, plan_.logical_shards, shards_.first + i);
  }
  if (std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}) != batch.size()) {
    return Status(Code::kBadPlan, "rank " + std::to_string(rank_) + " has loaded " +
                                      std::to_string(batch.size()) + " of " +
                                      std::to_string(batch_->counted) +
                                      " samples, which are not those of its logical shards");
  }
  std::int64_t begin = 0;
  for (const std::int64_t size : sizes) {
    const auto part = [&](const torch::Tensor& all) {
      return all.defined() ? all.narrow(0, begin, size).clone() : all;
    };
    batch_->micro_batches.push_back({.batch = {part(batch.input), part(batch.target)},
                                     .pieces = {},
                                     .loss = {},
                                     .weights = {}});
    begin += size;
  }
  return {};
}

Status Runner::forward(const Action& action) {
  MicroBatch& m = at(action);
  if (m.batch.size() == 0) return {};
  if (sums_ && action.range.first == 0) parts_.begin_shard(shards_.first + action.micro_batch);
  STORMO_RETURN_IF_ERROR(parts_.store.make_readable(action.range));
  Piece piece{.segments = action.range};
  STORMO_ASSIGN_OR_RETURN(torch::Tensor x, input_of(action, piece));
  const Interval interval(parts_.lanes, Lane::kCompute, "forward", version());
  if (is_recomputed_[current_]) {
    STORMO_RETURN_IF_ERROR(run_without_graph(piece, x));
  } else {
    // of another stage, which must not find it changed
    const bool is_borrowed = is_boundary(plan_.model, action.range.first - 1);
    const torch::Tensor given = is_borrowed ? x : torch::Tensor();
    const auto version = is_borrowed ? given._version() : 0;
    piece.output = compute(action.range, std::move(x));
    piece.wants_gradient = piece.output.requires_grad();
    if (is_borrowed && given._version() != version) {
      return changes_input(action.range, "no stage of a pipeline can begin with them");
    }
  }
  m.pieces.push_back(std::move(piece));
  return {};
}

/// What a piece computes with: the batch, or the output of the piece before, where the graph is
/// cut.
Result<torch::Tensor> Runner::input_of(const Action& action, Piece& piece) {
  MicroBatch& m = at(action);
  if (action.range.first == 0) return m.batch.input;
  if (is_boundary(plan_.model, action.range.first - 1)) {
    STORMO_ASSIGN_OR_RETURN(torch::Tensor x,
                            moved(Value::kOutput, action.range.first - 1, action.micro_batch));
    if (!x.is_floating_point()) return x;
    piece.input = x.requires_grad_();
  } else {
    Piece& before = m.pieces.back();
    // else no backward comes there
    if (!before.wants_gradient) return std::exchange(before.output, {});
    piece.input = before.output.detach().requires_grad_();
  }
  return Boundary::apply(piece.input);
}

/// Computes a piece of which nothing but its input is kept.
Status Runner::run_without_graph(Piece& piece, const torch::Tensor& x) const {
  const torch::NoGradGuard no_grad;
  piece.kept = x.detach();
  piece.generator = tensor::generator_state(device_);
  if (!device_.is_cpu()) piece.host_generator = tensor::generator_state();
  const auto version = piece.kept._version();
  piece.output = compute(piece.segments, piece.kept);
  if (piece.kept._version() != version) {
    return changes_input(piece.segments, "they cannot be computed again; train without recompute");
  }
  const auto first = trains_.begin() + piece.segments.first;
  piece.wants_gradient =
      piece.output.is_floating_point() &&
      (piece.input.defined() ||
       std::find(first, first + piece.segments.size(), true) != first + piece.segments.size());
  return {};
}

Status Runner::recompute(const Action& action) {
  MicroBatch& m = at(action);
  if (m.batch.size() == 0) return {};
  const auto piece = std::ranges::find(m.pieces, action.range, &Piece::segments);
  torch::Tensor x = std::exchange(piece->kept, {});
  if (!piece->wants_gradient) return {};
  STORMO_RETURN_IF_ERROR(parts_.store.make_readable(action.range));
  const Interval interval(parts_.lanes, Lane::kCompute, "recompute", version());
  const tensor::GeneratorAt same_numbers(piece->generator, device_);
  std::optional<tensor::GeneratorAt> same_on_host;
  if (piece->host_generator.defined()) same_on_host.emplace(piece->host_generator);
  if (piece->input.defined()) x = Boundary::apply(piece->input);
  piece->output = compute(action.range, std::move(x));
  return {};
}

torch::Tensor Runner::compute(plan::Range segments, torch::Tensor x) const {
  const plan::Range all = all_segments(plan_.model);
  std::optional<Autocast> autocast;
  if (parts_.task.autocast) autocast.emplace(device_.type(), *parts_.task.autocast);
  if (segments == all && !is_cut_) {
    x = parts_.task.forward(x);
  } else {
    for (int s = segments.first; s <= segments.last; ++s) {
      x = chain_->segments()[static_cast<std::size_t>(s)]->forward(std::move(x));
    }
  }
  return autocast && segments.last == all.last ? x.to(torch::kFloat32) : x;  // for the loss
}

Status Runner::loss(const Action& action) {
  MicroBatch& m = at(action);
  if (m.batch.size() == 0) return {};
  const Interval interval(parts_.lanes, Lane::kCompute, "loss");
  const torch::Tensor& output = m.pieces.back().output;
  m.loss = action.axes.empty()
               ? parts_.task.loss(output, m.batch.target)
               : parts_.task.split_loss(output, m.batch.target, *parts_.store.cut().split);
  if (!m.loss.is_cpu()) {
    losses_.emplace_back(m.loss.detach(), m.batch.size());
    return {};
  }
  const double value = m.loss.item<double>();
  add_loss(value, m.batch.size());
  return std::isfinite(value) ? Status() : not_finite(value, where_not_finite(m));
}

void Runner::add_loss(double value, std::int64_t samples) {
  const double sum = loss_share_ * value * static_cast<double>(samples);
  sums_ ? sums_->add_loss(sum) : static_cast<void>(outcome_.loss_sum += sum);
}

Status Runner::not_finite(double loss, const std::string& where) const {
  return invalid_argument("rank " + std::to_string(rank_) + ": the loss is " +
                          std::to_string(loss) + where +
                          "; lower the learning rate, clip gradients or check the data");
}

/// Of the step, so far.
Status Runner::read_losses() {
  const Status outcome = read_from_device();
  if (sums_) outcome_.loss_sum += sums_->take_loss();
  return outcome;
}

/// Those that are still on the device, in one transfer.
Status Runner::read_from_device() {
  if (losses_.empty()) return {};
  std::vector<torch::Tensor> values;
  for (const auto& [loss, samples] : losses_) values.push_back(loss.to(torch::kFloat64));
  const torch::Tensor read = at::stack(values).cpu();
  Status outcome;
  for (std::size_t i = 0; i < losses_.size(); ++i) {
    const double value = read.const_data_ptr<double>()[i];
    add_loss(value, losses_[i].second);
    // parameters are not finite either by now
    if (outcome.ok() && !std::isfinite(value)) outcome = not_finite(value, "");
  }
  losses_.clear();
  return outcome;
}

std::string Runner::where_not_finite(const MicroBatch& m) const {
  const std::string first = "; not finite first: ";
  // to look for it, ranks would have to exchange keys, and the loss of others may be finite
  if (context_) return first + "somewhere in front of the loss of this rank's positions";
  return first + (parts_.store.always_readable()
                      ? first_non_finite(parts_.task, m.batch)
                      : first_non_finite(parts_.store.pieces(), m.batch, m.pieces.back().output));
}

/// The gradient of the output of a backward's segments; undefined where nothing behind them looks
/// at it.
Result<torch::Tensor> Runner::gradient_of(const Action& action) {
  MicroBatch& m = at(action);
  if (is_boundary(plan_.model, action.range.last)) {
    STORMO_ASSIGN_OR_RETURN(torch::Tensor gradient,
                            moved(Value::kOutputGradient, action.range.last, action.micro_batch));
    return scaled(std::move(gradient), action.range.last);
  }
  const auto piece = std::ranges::find(m.pieces, action.range.last + 1,
                                       [](const Piece& p) { return p.segments.first; });
  const torch::Tensor gradient = piece->input.defined() ? piece->input.grad() : torch::Tensor();
  m.pieces.erase(piece);
  return gradient;
}

/// The gradients of all micro-batches add up to that of the mean over this rank's samples; of
/// logical shards those of all ranks to that of the mean over the global batch.
torch::Tensor Runner::take_loss(MicroBatch& m) {
  torch::Tensor loss = std::move(m.loss);
  if (plan_.micro_batches > 1 || sums_) loss = loss * share_of(m);
  return parts_.scaler != nullptr ? parts_.scaler->scale(loss) : loss;
}

Status Runner::backward(const Action& action) {
  MicroBatch& m = at(action);
  if (m.batch.size() == 0) return {};
  const auto piece = std::ranges::find(m.pieces, action.range, &Piece::segments);
  torch::Tensor output = std::move(piece->output);
  const torch::Tensor input = piece->input;
  piece->kept.reset();
  const bool last = action.range.last == all_segments(plan_.model).last;
  torch::Tensor gradient;
  if (!last) {
    STORMO_ASSIGN_OR_RETURN(gradient, gradient_of(action));
  }
  if (action.range.first == 0) m.pieces.erase(piece);  // no gradient of its input
  // nothing before here is trained, or nothing after it looks at it
  if (!output.requires_grad() || !(last || gradient.defined())) return {};
  STORMO_RETURN_IF_ERROR(parts_.store.make_readable(action.range));
  const Interval interval(parts_.lanes, Lane::kCompute, to_string(action.kind), version());
  if (last) output = take_loss(m);
  if (!row_of(action.kind).adds_gradients) {
    m.weights.emplace_back(action.range, TwoPartBackward(output, gradient, input));
    return {};
  }
  parts_.store.begin_backward(ends_gradients_[current_]);
  output.backward(gradient);
  return {};
}

Status Runner::backward_weight(const Action& action) {
  auto& left = at(action).weights;
  const auto found = std::ranges::find(left, action.range, [](const auto& w) { return w.first; });
  if (found == left.end()) return {};  // no gradient came there
  STORMO_RETURN_IF_ERROR(parts_.store.make_readable(action.range));
  const Interval interval(parts_.lanes, Lane::kCompute, "backward_weight", version());
  parts_.store.begin_backward(ends_gradients_[current_]);
  found->second.parameters();
  left.erase(found);
  return {};
}

/// Of a tensor of the present batch that crosses the boundary behind a segment; another one for
/// each that is under way.
std::uint64_t Runner::key_of(Value value, int boundary, int micro_batch) const {
  const auto part_of = [](std::uint64_t whole, auto parts, auto part) {
    return whole * static_cast<std::uint64_t>(parts) + static_cast<std::uint64_t>(part);
  };
  auto key = static_cast<std::uint64_t>(batch_->number % (longest_delay_ + 2));
  key = part_of(key, plan_.micro_batches, micro_batch);
  key = part_of(key, 2, value == Value::kOutputGradient);
  return part_of(key, plan_.model.segments.size(), boundary);
}

/// The sender goes on at once. The receiver waits when it computes with the tensor.
Status Runner::move(const Action& action) {
  MicroBatch& m = at(action);
  if (m.batch.size() == 0) return {};
  StageLink& link = *parts_.store.cut().stages;
  const bool activation = makes(action, Value::kOutput);
  const int from = ends_of(action).from;
  const auto [sender, receiver] = ranks_of_move(action);
  const StageLink::Key key = key_of(activation ? Value::kOutput : Value::kOutputGradient,
                                    action.range.first, action.micro_batch);
  const torch::IntArrayRef like = m.batch.input.sizes();
  const AxisGroups& groups = *parts_.store.made_for()->groups;
  if (sender != rank_) {
    senders_[key] = groups.rank_in_link(sender);
    return link.expect(senders_[key], key, like);
  }
  const Rank to = groups.rank_in_link(receiver);
  const auto piece = std::ranges::find(m.pieces, from, [activation](const Piece& p) {
    return activation ? p.segments.last : p.segments.first;
  });
  if (activation) return link.send(to, key, piece->output, like);
  const torch::Tensor gradient = piece->input.defined() ? piece->input.grad() : torch::Tensor();
  m.pieces.erase(piece);
  return link.send(to, key, gradient, like);
}

/// What a move across the boundary behind a segment has brought to this rank.
Result<torch::Tensor> Runner::moved(Value value, int boundary, int micro_batch) {
  const Interval interval(parts_.lanes, Lane::kWait,
                          value == Value::kOutput ? "move_activation" : "move_gradient");
  const StageLink::Key key = key_of(value, boundary, micro_batch);
  const auto sender = senders_.find(key);
  if (sender == senders_.end()) {
    return Status(Code::kBadPlan, "a stage needs a tensor that no move brings");
  }
  return parts_.store.cut().stages->receive(sender->second, key);
}

}  // namespace stormo::train
