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

ReplicatedStore::Part* ReplicatedStore::part_of(const ParameterRange& range) {
  const auto found =
      std::find_if(parts_.begin(), parts_.end(), [&](const Part& p) { return p.range == range; });
  return found == parts_.end() ? nullptr : &*found;
}

Status ReplicatedStore::all_reduce(const ParameterRange& range, double weight) {
  return part_of(range)->reducer->start(weight);
}

Result<double> ReplicatedStore::gradient_norm() {
  for (const Part& p : parts_) STORMO_RETURN_IF_ERROR(p.reducer->finish());
  return optimizer_->gradient_norm();
}

// Some are updated while the gradients of others travel.
Status ReplicatedStore::update(const ParameterRange& range, const StepRate& rate) {
  const Part* part = part_of(range);
  if (part == nullptr) return optimizer_->step(rate, range.first, range.last);
  return part->reducer->each_averaged([&](std::size_t first, std::size_t last) {
    return optimizer_->step(rate, range.first + first, range.first + last);
  });
}

std::string ReplicatedStore::describe() const {
  if (parts_.empty()) return "one rank holds everything";
  if (parts_.size() > 1) return "gradients are reduced part by part";
  return parts_.front().reducer->describe();
}

}  // namespace stormo::train
