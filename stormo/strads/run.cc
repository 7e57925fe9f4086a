#include <stormo/strads/run.h>

#include <numeric>
#include <utility>

#include <stormo/base/rng.h>

namespace stormo::strads {

Workers::Workers(comm::Communicator& world, std::unique_ptr<BlockProgram> program)
    : world_(&world) {
  here_.push_back(std::move(program));
}

Workers::Workers(std::vector<std::unique_ptr<BlockProgram>> programs)
    : here_(std::move(programs)) {}

int Workers::count() const {
  return world_ != nullptr ? world_->size() : static_cast<int>(here_.size());
}

Status Workers::gather(std::size_t size, const Fill& fill, bool later, Gathering& into) const {
  into.all.resize(size * static_cast<std::size_t>(count()));
  if (world_ == nullptr) {
    for (std::size_t w = 0; w < here_.size(); ++w) {
      fill(*here_[w], std::span(into.all).subspan(size * w, size));
    }
    return {};
  }
  into.mine.resize(size);
  fill(first(), into.mine);
  if (!later) return world_->all_gather(into.mine, into.all);
  into.done = world_->all_gather_async(into.mine, into.all);
  return {};
}

Result<std::vector<double>> Workers::sum(std::size_t size, const Fill& fill) const {
  Gathering parts;
  STORMO_RETURN_IF_ERROR(gather(size, fill, /*later=*/false, parts));
  return sums_of(parts.all);
}

Result<BlockValues> Workers::values() const {
  BlockValues all = first().values();
  for (std::size_t w = 1; w < here_.size(); ++w) {
    const std::vector<double> rows = here_[w]->values().rows;
    all.rows.insert(all.rows.end(), rows.begin(), rows.end());
  }
  if (world_ == nullptr) return all;
  std::int64_t count = std::ssize(all.rows);
  std::vector<std::int64_t> counts(static_cast<std::size_t>(world_->size()));
  STORMO_RETURN_IF_ERROR(world_->all_gather({&count, 1, DType::kInt64}, counts));
  std::vector<double> mine = std::move(all.rows);
  const auto sum = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  all.rows.assign(world_->rank() == 0 ? static_cast<std::size_t>(sum) : 0, 0);
  STORMO_RETURN_IF_ERROR(world_->gather(mine, all.rows, 0, counts));
  return all;
}

std::vector<double> Workers::sums_of(std::span<const double> all) const {
  const std::size_t size = all.size() / static_cast<std::size_t>(count());
  std::vector<double> sums(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(size));
  for (std::size_t at = size; at < all.size(); at += size) {
    for (std::size_t i = 0; i < size; ++i) sums[i] += all[at + i];
  }
  return sums;
}

RoundsRun::RoundsRun(Workers workers, protocol::Scheduler scheduler,
                     std::optional<protocol::VirtualWorkers> simulated)
    : workers_(std::move(workers)), scheduler_(std::move(scheduler)) {
  if (simulated) time_.emplace(std::move(*simulated), workers_.count());
}

RoundsRun::~RoundsRun() {
  for (Gathering& pending : gathering_) (void)pending.done.wait();
}

Status RoundsRun::go_on(std::int64_t rounds) {
  if (scheduler_.rounds_done() >= rounds) return {};
  if (time_) STORMO_RETURN_IF_ERROR(time_->start());
  while (scheduler_.rounds_done() < rounds) {
    while (scheduler_.may_begin() && scheduler_.rounds_begun() < rounds) {
      STORMO_RETURN_IF_ERROR(begin());
    }
    STORMO_RETURN_IF_ERROR(end_oldest());
  }
  return time_ ? time_->finish() : Status();
}

Status RoundsRun::begin() {
  const std::vector<std::int64_t>& blocks = scheduler_.begin();
  updates_ += std::ssize(blocks);
  order_hash_ =
      fnv1a({reinterpret_cast<const char*>(blocks.data()), blocks.size() * sizeof(blocks[0])},
            order_hash_);
  if (time_) STORMO_RETURN_IF_ERROR(time_->begin(blocks.size()));
  return workers_.gather(
      workers_.first().part_size(blocks),
      [&](BlockProgram& program, std::span<double> part) { program.update(blocks, part); },
      /*later=*/scheduler_.options().depth > 0, gathering_.emplace_back());
}

Status RoundsRun::end_oldest() {
  const std::vector<std::int64_t> blocks = scheduler_.in_flight().front();
  STORMO_RETURN_IF_ERROR(gathering_.front().done.wait());
  if (time_) STORMO_RETURN_IF_ERROR(time_->end());
  std::vector<double> values(workers_.first().value_size(blocks)), changes(blocks.size());
  workers_.first().aggregate(blocks, workers_.sums_of(gathering_.front().all), values, changes);
  gathering_.pop_front();
  for (const auto& program : workers_.here()) program->set(blocks, values);
  return scheduler_.end(changes);
}

Result<Judgement> RoundsRun::judge() const {
  STORMO_ASSIGN_OR_RETURN(const std::vector<double> sums,
                          workers_.sum(workers_.first().judged_size(),
                                       [](BlockProgram& program, std::span<double> part) {
                                         program.judged_part(part);
                                       }));
  return workers_.first().judge(sums);
}

}  // namespace stormo::strads
