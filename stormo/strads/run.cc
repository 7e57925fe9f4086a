#include <stormo/strads/run.h>

#include <numeric>
#include <utility>

#include <stormo/base/rng.h>
#include <stormo/plan/bad_plan.h>
#include <stormo/strads/round_plan.h>

namespace stormo::strads {
namespace {

/// Of the parts of all workers, in their order.
std::vector<double> sums_of(std::span<const double> all, int workers) {
  const std::size_t size = all.size() / static_cast<std::size_t>(workers);
  std::vector<double> sums(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(size));
  for (std::size_t at = size; at < all.size(); at += size) {
    for (std::size_t i = 0; i < size; ++i) sums[i] += all[at + i];
  }
  return sums;
}

}  // namespace

Workers::Workers(comm::Communicator& world, std::unique_ptr<BlockProgram> program)
    : world_(&world) {
  here_.push_back(std::move(program));
}

Workers::Workers(std::vector<std::unique_ptr<BlockProgram>> programs)
    : here_(std::move(programs)) {}

int Workers::count() const {
  return world_ != nullptr ? world_->size() : static_cast<int>(here_.size());
}

std::vector<double> Workers::parts(std::size_t size, const Fill& fill) const {
  std::vector<double> parts(size * here_.size());
  for (std::size_t w = 0; w < here_.size(); ++w) {
    fill(*here_[w], std::span(parts).subspan(size * w, size));
  }
  return parts;
}

Status Workers::gather(std::vector<double>& parts, std::vector<double>& all,
                       comm::Work* later) const {
  if (world_ == nullptr) {
    all = std::move(parts);
    return {};
  }
  all.resize(parts.size() * static_cast<std::size_t>(count()));
  if (later == nullptr) return world_->all_gather(parts, all);
  *later = world_->all_gather_async(parts, all);
  return {};
}

Result<std::vector<double>> Workers::sum(std::size_t size, const Fill& fill) const {
  std::vector<double> mine = parts(size, fill), all;
  STORMO_RETURN_IF_ERROR(gather(mine, all));
  return sums_of(all, count());
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

Result<RoundsRun> RoundsRun::make(Workers workers, protocol::Scheduler scheduler,
                                  plan::StepPlan plan,
                                  std::optional<protocol::VirtualWorkers> simulated) {
  STORMO_RETURN_IF_ERROR(check_round_plan(plan, workers.count(), scheduler.options().depth));
  RoundsRun run(std::move(workers), std::move(scheduler), std::move(plan));
  if (simulated) run.time_.emplace(std::move(*simulated), run.workers_.count());
  return run;
}

RoundsRun::~RoundsRun() {
  for (Round& pending : rounds_) (void)pending.reduced.wait();
}

Status RoundsRun::go_on(std::int64_t rounds) {
  if (scheduler_.rounds_done() >= rounds) return {};
  if (time_) STORMO_RETURN_IF_ERROR(time_->start());
  while (scheduler_.rounds_begun() < rounds) STORMO_RETURN_IF_ERROR(step(/*finishing=*/0));
  // the steps that would follow, without rounds of their own
  for (int n = 1; n <= depth_; ++n) STORMO_RETURN_IF_ERROR(step(n));
  rounds_.clear();
  return time_ ? time_->finish() : Status();
}

/// `finishing`: steps since the last load.
Status RoundsRun::step(int finishing) {
  if (finishing == 0) rounds_.emplace_front();
  for (const plan::Action& a : plan_.actions) {
    const int loaded_later = a.delay - finishing;
    const bool is_there = loaded_later >= 0 && loaded_later < std::ssize(rounds_);
    if (row_of(a.kind).all_batches || !is_there) continue;
    STORMO_RETURN_IF_ERROR(execute(a, rounds_[static_cast<std::size_t>(loaded_later)]));
    if (done_) done_(a);
  }
  if (std::ssize(rounds_) > depth_) rounds_.pop_back();
  return {};
}

Status RoundsRun::execute(const plan::Action& action, Round& round) {
  using enum plan::ActionKind;
  switch (action.kind) {
    case kLoad: each([](BlockProgram& p) { p.load(); }); break;
    case kChoose: return choose(round);
    case kForward: each([&](BlockProgram& p) { p.forward(round.blocks); }); break;
    case kLoss: each([](BlockProgram& p) { p.loss(); }); break;
    case kBackward: backward(round); break;
    case kAllReduce:
      return workers_.gather(round.parts, round.all,
                             action.asynchronous ? &round.reduced : nullptr);
    case kUpdate: return update(round);
    default: return plan::bad("a round has no such action");  // check_round_plan() has refused it
  }
  return {};
}

Status RoundsRun::choose(Round& round) {
  round.blocks = scheduler_.begin();
  updates_ += std::ssize(round.blocks);
  order_hash_ = fnv1a({reinterpret_cast<const char*>(round.blocks.data()),
                       round.blocks.size() * sizeof(round.blocks[0])},
                      order_hash_);
  return time_ ? time_->begin(round.blocks.size()) : Status();
}

void RoundsRun::backward(Round& round) const {
  round.parts = workers_.parts(
      workers_.first().part_size(round.blocks),
      [&](BlockProgram& program, std::span<double> part) { program.backward(round.blocks, part); });
}

Status RoundsRun::update(Round& round) {
  STORMO_RETURN_IF_ERROR(round.reduced.wait());
  if (time_) STORMO_RETURN_IF_ERROR(time_->end());
  std::vector<double> values(workers_.first().value_size(round.blocks)),
      changes(round.blocks.size());
  const auto& all = round.all.empty() ? round.parts : round.all;
  workers_.first().aggregate(round.blocks, sums_of(all, workers_.count()), values, changes);
  each([&](BlockProgram& program) { program.set(round.blocks, values); });
  return scheduler_.end(changes);
}

Result<Judgement> RoundsRun::judge() {
  STORMO_ASSIGN_OR_RETURN(const std::vector<double> sums,
                          workers_.sum(workers_.first().judged_size(),
                                       [](BlockProgram& program, std::span<double> part) {
                                         program.judged_part(part);
                                       }));
  for (const plan::Action& a : plan_.actions) {
    if (done_ && row_of(a.kind).all_batches) done_(a);
  }
  return workers_.first().judge(sums);
}

}  // namespace stormo::strads
