#include <stormo/train/replicated_store.h>

#include <algorithm>
#include <utility>

#include <stormo/train/model_parameters.h>

namespace stormo::train {

ReplicatedStore::ReplicatedStore(const AxisGroups& groups, std::unique_ptr<Optimizer> optimizer,
                                 const plan::StepPlan& plan, Reduction how)
    : optimizer_(std::move(optimizer)) {
  std::vector<const plan::Action*> reduced;
  for (const plan::Action& a : plan.actions) {
    if (a.kind == plan::ActionKind::kAllReduce) reduced.push_back(&a);
  }
  // Buckets of several reducers would be sent in the order of arrival, which ranks do not share.
  if (reduced.size() > 1) how.overlap = Overlap::at_the_end();
  const auto all = optimizer_->parameters().begin();
  for (const plan::Action* a : reduced) {
    const ParameterRange range = trainable_in(plan.model, a->range);
    const std::vector<NamedParameter> some(all + static_cast<std::ptrdiff_t>(range.first),
                                           all + static_cast<std::ptrdiff_t>(range.last));
    comm::Communicator& ranks = *groups.over(a->axes).take_or_throw();
    parts_.push_back({a->range, range, std::make_unique<BackwardReducer>(ranks, some, how)});
  }
}

void ReplicatedStore::begin_pass(double weight, bool last) {
  for (const Part& p : parts_) p.reducer->begin_pass(weight, last);
}

Status ReplicatedStore::check(const plan::StepPlan& plan) const {
  std::vector<plan::Range> reduced;
  for (std::size_t i = 0; i < plan.actions.size(); ++i) {
    const plan::Action& a = plan.actions[i];
    if (!moves(a.kind)) continue;
    if (a.kind != plan::ActionKind::kAllReduce) {
      return cannot(plan, i, "replicas only average gradients (all_reduce)");
    }
    if (std::ranges::count(reduced, a.range) > 0) {
      return cannot(plan, i, "replicas average a range once, over all of its axes together");
    }
    reduced.push_back(a.range);
  }
  return {};
}

Status ReplicatedStore::perform(const plan::Action& action, double weight) {
  const auto part = std::ranges::find(parts_, action.range, &Part::reduced);
  STORMO_RETURN_IF_ERROR(part->reducer->start(weight));
  done(action);
  return {};
}

Result<double> ReplicatedStore::gradient_norm() {
  for (const Part& p : parts_) STORMO_RETURN_IF_ERROR(p.reducer->finish());
  return optimizer_->gradient_norm();
}

// Some are updated while the gradients of others travel.
Status ReplicatedStore::update(const ParameterRange& range, const StepRate& rate) {
  for (const Part& p : parts_) {
    if (p.range == range) {
      return p.reducer->each_averaged([&](std::size_t first, std::size_t last) {
        return optimizer_->step(rate, range.first + first, range.first + last);
      });
    }
    const bool overlaps = p.range.first < range.last && range.first < p.range.last;
    if (overlaps) STORMO_RETURN_IF_ERROR(p.reducer->finish());
  }
  return optimizer_->step(rate, range.first, range.last);
}

std::string ReplicatedStore::describe() const {
  if (parts_.empty()) return "one rank holds everything";
  if (parts_.size() > 1) return "gradients are reduced part by part";
  return parts_.front().reducer->describe();
}

}  // namespace stormo::train
