#include <stormo/train/reduction/gradient_reducer.h>

#include <algorithm>
#include <span>
#include <utility>

#include <stormo/analysis/transfer/requests.h>
#include <stormo/base/check.h>
#include <stormo/parallel/computation/reduce_with.h>
#include <stormo/parallel/one_device.h>
#include <stormo/parallel/replicas/bucket.h>
#include <stormo/parallel/replicas/mirrored.h>
#include <stormo/tensor/dtype.h>
#include <stormo/tensor/model_shape.h>
#include <stormo/train/parameters/model_parameters.h>
#include <stormo/train/perform/perform.h>
#include <stormo/train/reduction/reduce_rows.h>
#include <stormo/train/state/residuals.h>

namespace stormo::train {
namespace {

bool averages_gradients(const plan::Action& a) {
  return places(a, plan::Value::kGradients, plan::Placement::kReplicate);
}

std::vector<NamedParameter> checked(std::vector<NamedParameter> parameters) {
  for (const NamedParameter& p : parameters) {
    Status supported = tensor::dtype_of(p.tensor.scalar_type()).status();
    if (supported.ok() && p.tensor.layout() != torch::kStrided) {
      supported = invalid_argument("only dense tensors can be reduced");
    }
    if (supported.ok() && p.sparse && !p.tensor.is_cpu()) {
      supported =
          invalid_argument("ranks exchange rows of sparse gradients in host memory, not on " +
                           p.tensor.device().str() + "; build the module with sparse(false)");
    }
    throw_if_error(supported.within("gradient of '" + p.name + "'"));
  }
  return parameters;
}

Status check_type(const plan::ParameterShape& shape, const NamedParameter& p) {
  STORMO_ASSIGN_OR_RETURN(const DType type, tensor::dtype_of(p.tensor.scalar_type()));
  if (type == shape.dtype) return {};
  return Status(Code::kBadPlan, "the plan is for another model: '" + p.name + "' is of " +
                                    std::string(to_string(shape.dtype)) + ", the module's of " +
                                    std::string(to_string(type)));
}

}  // namespace

plan::StepPlan plan_of_replicas(const std::vector<NamedParameter>& parameters, int ranks,
                                const ReductionOptions& how) {
  plan::SegmentShape module{.name = "module", .parameters = {}};
  for (const NamedParameter& p : parameters) {
    module.parameters.push_back(tensor::parameter_shape(p.name, p.tensor));
    module.parameters.back().sparse = p.sparse;
  }
  const plan::StepPlan one = parallel::one_device(plan::without_unused_forms(
      {.segments = {std::move(module)}}, {.factors = row_of(how.codec).has_factors()}));
  std::vector<parallel::Pass> passes = {parallel::mirrored(ranks)};
  if (how.overlap.kind == Overlap::Kind::kBuckets) {
    passes.push_back(parallel::bucket(how.overlap.bucket_bytes));
  }
  passes.push_back(parallel::reduce_with({.codec = how.codec, .all_reduce = how.algorithm}));
  return parallel::compose(one, passes).take_or_throw();
}

const plan::Action* first_reduction(const plan::StepPlan& plan) {
  const auto found = std::ranges::find_if(plan.actions, averages_gradients);
  return found == plan.actions.end() ? nullptr : &*found;
}

GradientReducer::GradientReducer(comm::Communicator& world, std::vector<NamedParameter> parameters)
    : world_(world), parameters_(checked(std::move(parameters))) {}

// What is under way writes into the buckets.
GradientReducer::~GradientReducer() { abandon(); }

TensorMap GradientReducer::residuals() const {
  TensorMap out;
  for (const Part& part : parts_) {
    for (const auto& bucket : part.buckets) {
      if (bucket->encoded()) add_residual(out, bucket->name(), *bucket->encoded());
    }
  }
  return out;
}

void GradientReducer::set_plan(const plan::StepPlan& plan) {
  for (auto& [key, values] : residuals()) kept_[key] = values;
  parts_.clear();
  started_ = 0;
  terms_ = terms_of_gradients(plan, parameters_.size());
  count_.reset();
  std::vector<std::size_t> numbers;
  for (std::size_t next = 0; const plan::ParameterShape* p : flatten(plan.model)) {
    numbers.push_back(next);
    if (p->trainable && !p->elsewhere) ++next;
  }
  for (std::size_t i = 0; i < plan.actions.size(); ++i) {
    const plan::Action& a = plan.actions[i];
    if (averages_gradients(a)) parts_.push_back(part_of_plan(plan, i, numbers));
    if (!makes(a, plan::Value::kWeights)) continue;
    count_ = a;
    counted_ = analysis::requests_of(plan, i, {});
  }
  part_of_.assign(parameters_.size(), parts_.size());
  for (std::size_t k = 0; k < parts_.size(); ++k) {
    for (std::size_t i = parts_[k].range.first; i < parts_[k].range.last; ++i) part_of_[i] = k;
  }
  next_pass();
}

// One rank sends nothing, and has no buckets.
GradientReducer::Part GradientReducer::part_of_plan(const plan::StepPlan& plan, std::size_t action,
                                                    const std::vector<std::size_t>& numbers) {
  const plan::Action& a = plan.actions[action];
  Part part{.action = a, .range = trainable_in(plan.model, a.range), .buckets = {}};
  const auto shapes = flatten(plan.model);
  for (int i = a.range.last; i >= a.range.first; --i) {
    const plan::ParameterShape& p = *shapes[static_cast<std::size_t>(i)];
    if (!p.sparse || !p.trainable || p.elsewhere) continue;
    part.tables.push_back(parameters_[numbers[static_cast<std::size_t>(i)]]);
  }
  std::optional<analysis::Collective> flags;
  const analysis::StepSizes sizes{.flags_apart =
                                      !parameters_.empty() && !parameters_.front().tensor.is_cpu()};
  for (analysis::Collective& sent : analysis::requests_of(plan, action, sizes)) {
    if (sent.content == analysis::Content::kFlags) flags = std::move(sent);
    if (sent.content != analysis::Content::kValues) continue;
    std::vector<NamedParameter> some;
    for (const auto* of : {&sent.in_place, &sent.packed}) {
      for (const int number : *of) {
        const auto p = static_cast<std::size_t>(number);
        some.push_back(parameters_[numbers[p]]);
        throw_if_error(check_type(*shapes[p], some.back()));
      }
    }
    auto& bucket = part.buckets.emplace_back(std::make_unique<GradientBucket>(
        world_, std::move(some), std::move(sent), std::exchange(flags, std::nullopt)));
    if (bucket->encoded()) restore_residual(kept_, bucket->name(), *bucket->encoded());
  }
  return part;
}

void GradientReducer::observe_backward() {
  hooks_.reset();
  const bool any = std::ranges::any_of(parts_, [](const Part& p) { return p.action.asynchronous; });
  if (!any || world_.size() == 1) return;
  std::vector<torch::Tensor> tensors;
  for (const NamedParameter& p : parameters_) tensors.push_back(p.tensor);
  hooks_ = std::make_unique<BackwardHooks>(
      tensors, BackwardHooks::Events{.ready = [this](std::size_t i) { ready(i); },
                                     .nested = [this] { defer(); },
                                     .abandoned = [this] { abandon(); }});
}

void GradientReducer::begin_backward(bool last) {
  if (hooks_ == nullptr) return;
  hooks_->enable(last);
  if (last) hooks_->renew();
}

void GradientReducer::ready(std::size_t index) {
  // Whoever announces a gradient still holds it, so its part has to wait for the next
  // announcement: then it may be written where it lies.
  while (next_is_full()) throw_if_error(start_next());
  const std::size_t k = part_of_[index];
  if (k == parts_.size()) return;
  const int missing = --missing_[index];
  if (missing == 0) --parts_[k].missing;
  if (missing < 0 && k < started_) {
    throw Error(invalid_argument(
        "the gradient of '" + parameters_[index].name +
        "' changed after its bucket was sent: it is used by several checkpointed parts of the "
        "model; reduce at the end of backward (Overlap::at_the_end())"));
  }
}

bool GradientReducer::next_is_full() const {
  const bool may_start = !held_ && world_.size() > 1 && (!count_ || total_asked_);
  return may_start && started_ < parts_.size() && parts_[started_].missing == 0 &&
         parts_[started_].action.asynchronous;
}

Status GradientReducer::count(bool asynchronous) {
  total_asked_ = true;
  total_weight_ = weight_;
  if (world_.size() == 1) return {};
  const comm::Buffer total = std::span(&total_weight_, 1);
  total_known_ = start_transfer(world_, counted_.at(0), in_place({&total, 1}));
  return asynchronous ? Status() : total_known_.wait();
}

Status GradientReducer::perform(const plan::Action& action) {
  if (makes(action, plan::Value::kWeights)) {
    STORMO_RETURN_IF_ERROR(count(action.asynchronous));
    if (done_) done_(action);
    return {};
  }
  const auto part = std::ranges::find(parts_, action, &Part::action);
  STORMO_CHECK(part != parts_.end(), "an action of another plan");
  const auto number = static_cast<std::size_t>(part - parts_.begin());
  if (action.asynchronous && number < started_) return {};  // it is under way
  STORMO_CHECK(!action.asynchronous || number == started_, "actions of a plan in another order");
  started_ = number;
  return start_next();
}

Status GradientReducer::start_next() {
  Part& part = parts_[started_++];
  if (prepare_) prepare_(part.range);
  if (world_.size() > 1) {  // else they are the average, bit for bit
    if (total_asked_) STORMO_RETURN_IF_ERROR(total_known_.wait());
    double total = total_asked_ ? total_weight_ : 0;
    if (!total_asked_ && row_of(part.action.codec).encodes()) {
      STORMO_ASSIGN_OR_RETURN(total, sum_of_weights());
    }
    for (const auto& bucket : part.buckets) {
      for (const comm::Request& request : bucket->gather(weight_, total)) {
        if (part.action.asynchronous) {
          part.work.push_back(world_.submit(request));
        } else {
          STORMO_RETURN_IF_ERROR(world_.run(request, Deadline::never()));
        }
      }
    }
    part.under_way = true;
    if (!part.action.asynchronous) STORMO_RETURN_IF_ERROR(finish(part.range, {}));
  }
  if (done_) done_(part.action);
  return {};
}

Result<double> GradientReducer::sum_of_weights() {
  double total = weight_;
  STORMO_RETURN_IF_ERROR(add_up(world_, std::span(&total, 1)));
  return total;
}

Status GradientReducer::reduce_tables(const Part& part) {
  double total = total_weight_;
  if (!total_asked_) {
    STORMO_ASSIGN_OR_RETURN(total, sum_of_weights());
  }
  for (const NamedParameter& p : part.tables) {
    STORMO_RETURN_IF_ERROR(reduce_rows(world_, p.tensor, total > 0 ? weight_ / total : 0)
                               .within("gradient of '" + p.name + "'"));
  }
  return {};
}

Status GradientReducer::finish(const ParameterRange& range, const Averaged& averaged) {
  for (Part& part : parts_) {
    const ParameterRange common{std::max(part.range.first, range.first),
                                std::min(part.range.last, range.last)};
    if (common.first >= common.last) continue;
    if (std::exchange(part.under_way, false)) {
      Status outcome;
      for (comm::Work& work : std::exchange(part.work, {})) {
        if (const Status one = work.wait(); outcome.ok()) outcome = one;
      }
      STORMO_RETURN_IF_ERROR(outcome);
      for (const auto& bucket : part.buckets) bucket->scatter();
      if (!part.tables.empty()) STORMO_RETURN_IF_ERROR(reduce_tables(part));
    }
    if (averaged) STORMO_RETURN_IF_ERROR(averaged(common));
  }
  return {};
}

Status GradientReducer::finish() { return finish({0, parameters_.size()}, {}); }

void GradientReducer::next_pass() {
  for (Part& part : parts_) part.missing = part.range.last - part.range.first;
  missing_ = terms_;
  started_ = 0;
  held_ = false;
  total_asked_ = false;
}

Status GradientReducer::begin_pass() {
  return count_ && !total_asked_ ? perform(*count_) : Status();
}

Status GradientReducer::reduce() {
  STORMO_RETURN_IF_ERROR(begin_pass());
  while (started_ < parts_.size()) {
    STORMO_RETURN_IF_ERROR(start_next());
  }
  STORMO_RETURN_IF_ERROR(finish());
  next_pass();
  return {};
}

void GradientReducer::abandon() {
  for (Part& part : parts_) {
    part.under_way = false;
    for (comm::Work& work : std::exchange(part.work, {})) static_cast<void>(work.wait());
    for (const auto& bucket : part.buckets) bucket->forget();
  }
  if (total_asked_ && world_.size() > 1) static_cast<void>(total_known_.wait());
  next_pass();
}

}  // namespace stormo::train
