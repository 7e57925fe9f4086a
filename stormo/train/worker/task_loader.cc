#include <stormo/train/worker/task_loader.h>

#include <algorithm>
#include <utility>

#include <stormo/train/sampling.h>

namespace stormo::train {

int prefetch_depth(const TrainerOptions& options) { return 1 + options.data_threads; }

TaskLoader::TaskLoader(std::shared_ptr<const data::Dataset> data, const TrainerOptions& options,
                       int worker, int workers, const plan::Part& rank,
                       const server::Ledger::Terms& terms)
    : data_(std::move(data)),
      options_(options),
      share_(terms.portions > 0 ? kNone : worker),
      parts_(terms.portions > 0 ? terms.portions : workers),
      rank_(rank),
      first_step_(terms.first_step),
      cursors_{terms.first_sample} {
  if (share_ != kNone) prefetch_from(terms.first_step);
}

data::Sampler& TaskLoader::sampler_of(int part) {
  const auto found = samplers_.find(part);
  if (found != samplers_.end()) return found->second;
  const int own = part * rank_.parts + rank_.index;
  return samplers_.emplace(part, make_sampler(*data_, options_, own, parts_ * rank_.parts))
      .first->second;
}

std::int64_t TaskLoader::cursor(std::uint64_t step) {
  const std::size_t number = step - first_step_;
  const data::Sampler& sampler = sampler_of(0);
  while (cursors_.size() <= number) cursors_.push_back(sampler.next(cursors_.back()));
  return cursors_[number];
}

std::uint64_t TaskLoader::step_at(std::int64_t samples) {
  const data::Sampler& sampler = sampler_of(0);
  while (cursors_.back() <= samples) cursors_.push_back(sampler.next(cursors_.back()));
  const auto later = std::ranges::upper_bound(cursors_, samples);
  return first_step_ + static_cast<std::uint64_t>(later - cursors_.begin()) - 1;
}

void TaskLoader::prefetch_from(std::uint64_t step) {
  own_ = std::make_unique<data::Prefetcher>(data_, sampler_of(share_), cursor(step),
                                            prefetch_depth(options_), options_.data_threads);
  next_own_ = step;
}

Result<data::Batch> TaskLoader::load(const server::StepTask& task) {
  // others have done steps of its share while it was taken for lost
  const bool own = task.part == share_;
  if (own && task.step != next_own_) prefetch_from(task.step);
  if (own) {
    ++next_own_;
    STORMO_ASSIGN_OR_RETURN(data::StepBatch next, own_->next());
    return std::move(next.batch);
  }
  return data::load_slice(*data_, sampler_of(task.part).slice(cursor(task.step)));
}

}  // namespace stormo::train
