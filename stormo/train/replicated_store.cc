#include <stormo/train/replicated_store.h>

#include <algorithm>
#include <utility>

namespace stormo::train {

ReplicatedStore::ReplicatedStore(comm::Communicator& world, std::unique_ptr<Optimizer> optimizer,
                                 const std::vector<ParameterRange>& ranges, Reduction how)
    : optimizer_(std::move(optimizer)) {
  // Buckets of several reducers would be sent in the order of arrival, which ranks do not share.
  if (ranges.size() > 1) how.overlap = Overlap::at_the_end();
  const auto all = optimizer_->parameters().begin();
  for (const ParameterRange& range : ranges) {
    const std::vector<NamedParameter> some(all + static_cast<std::ptrdiff_t>(range.first),
                                           all + static_cast<std::ptrdiff_t>(range.last));
    parts_.push_back({range, std::make_unique<BackwardReducer>(world, some, how)});
  }
}

void ReplicatedStore::begin_pass(double weight, bool last) {
  for (const Part& p : parts_) p.reducer->begin_pass(weight, last);
}

Status ReplicatedStore::all_reduce(const ParameterRange& range, double weight) {
  const auto found =
      std::find_if(parts_.begin(), parts_.end(), [&](const Part& p) { return p.range == range; });
  return found->reducer->reduce(weight);
}

Status ReplicatedStore::update(const ParameterRange& range, const StepRate& rate) {
  return optimizer_->step(rate, range.first, range.last);
}

std::string ReplicatedStore::describe() const {
  if (parts_.empty()) return "one rank holds everything";
  if (parts_.size() > 1) return "gradients are reduced part by part";
  return parts_.front().reducer->describe();
}

}  // namespace stormo::train
