#include <stormo/train/server_store/early_pull.h>

#include <utility>

#include <stormo/train/parameters/model_parameters.h>

namespace stormo::train {

void EarlyPull::set_plan(const plan::StepPlan& plan) {
  reads_.clear();
  for (const std::vector<int>& read : parameters_read(plan.model)) {
    std::vector<std::size_t>& own = reads_.emplace_back();
    for (const int p : read) {
      const ParameterRange range = trainable_in(plan.model, {p, p});
      if (size_of(range) == 1) own.push_back(range.first);
    }
  }
}

// All reads are begun before the first one is waited for: shards of other hosts then work at the
// same time.
Status EarlyPull::begin() {
  under_way_ = true;
  is_shown_.assign(served_.parameters().size(), false);
  views_.assign(shards_.size(), {});
  for (const auto& shard : shards_) shard->begin_read();
  Status outcome;
  for (std::size_t s = 0; s < shards_.size(); ++s) {
    if (shards_[s]->is_remote()) continue;
    Result<server::Shard::View> view = shards_[s]->read();
    if (!view.ok() && outcome.ok()) outcome = view.status();
    if (view.ok()) views_[s] = std::move(*view);
  }
  return outcome;
}

Result<const std::byte*> EarlyPull::piece(const ServedParameters::Slice& slice) const {
  if (views_[slice.shard]) return views_[slice.shard]->pieces[slice.piece];
  return shards_[slice.shard]->arrival(slice.piece);
}

Status EarlyPull::show(std::size_t parameter) {
  if (is_shown_[parameter]) return {};
  std::vector<const std::byte*> values;
  for (const ServedParameters::Slice& slice : served_.slices(parameter)) {
    STORMO_ASSIGN_OR_RETURN(values.emplace_back(), piece(slice));
  }
  served_.show(parameter, values);
  is_shown_[parameter] = true;
  return {};
}

Status EarlyPull::make_readable(plan::Range segments) {
  if (!under_way_) return {};
  for (int s = segments.first; s <= segments.last; ++s) {
    for (const std::size_t parameter : reads_[static_cast<std::size_t>(s)]) {
      STORMO_RETURN_IF_ERROR(show(parameter));
    }
  }
  return {};
}

// What was begun is read, also when one fails.
Result<EarlyPull::Views> EarlyPull::finish() {
  under_way_ = false;
  Status outcome;
  Views views;
  for (std::size_t s = 0; s < shards_.size(); ++s) {
    if (!views_[s]) {
      Result<server::Shard::View> view = shards_[s]->read();
      if (!view.ok() && outcome.ok()) outcome = view.status();
      if (!view.ok()) continue;
      views_[s] = std::move(*view);
    }
    views.push_back(*views_[s]);
  }
  STORMO_RETURN_IF_ERROR(outcome);
  for (std::size_t i = 0; i < served_.parameters().size(); ++i) STORMO_RETURN_IF_ERROR(show(i));
  return views;
}

}  // namespace stormo::train
