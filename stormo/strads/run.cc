#include <stormo/strads/run.h>

#include <string_view>
#include <utility>

#include <stormo/base/rng.h>

namespace stormo::strads {
namespace {

using protocol::AggregateRound;
using protocol::ComputeRound;
using protocol::FromScheduler;
using protocol::RoundAggregated;
using protocol::SetRound;

/// The sums of all workers' parts, which are one after the other, in the order of workers.
std::vector<double> sums_of(std::span<const double> parts, std::size_t workers) {
  const std::size_t size = parts.size() / workers;
  std::vector<double> sums(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(size));
  for (std::size_t at = size; at < parts.size(); at += size) {
    for (std::size_t i = 0; i < size; ++i) sums[i] += parts[at + i];
  }
  return sums;
}

/// The changes; fills `values`.
std::vector<double> aggregate_parts(const BlockProgram& program, const ComputeRound& round,
                                    std::span<const double> parts, std::size_t workers,
                                    std::vector<double>& values) {
  std::vector<double> changes(round.blocks.size());
  values.resize(program.value_size(round.blocks));
  program.aggregate(round.blocks, sums_of(parts, workers), values, changes);
  return changes;
}

}  // namespace

void RoundsRun::note(const ComputeRound& round) {
  updates_ += std::ssize(round.blocks);
  const auto* bytes = reinterpret_cast<const char*>(round.blocks.data());
  order_hash_ = fnv1a({bytes, round.blocks.size() * sizeof(round.blocks[0])}, order_hash_);
}

Result<std::vector<double>> sum_of_parts(comm::Communicator& world, std::span<double> part) {
  const auto ranks = static_cast<std::size_t>(world.size());
  std::vector<double> parts(part.size() * ranks);
  STORMO_RETURN_IF_ERROR(world.all_gather(part, parts));
  return sums_of(parts, ranks);
}

RankRounds::RankRounds(comm::Communicator& world, BlockProgram& program,
                       protocol::Scheduler scheduler)
    : world_(world), program_(program), scheduler_(std::move(scheduler)) {}

RankRounds::~RankRounds() {
  if (scheduler_.options().depth == 0) return;
  for (Gathering& pending : gathering_) (void)pending.done.wait();
}

Status RankRounds::go_on(std::int64_t rounds) {
  STORMO_ASSIGN_OR_RETURN(const auto first, scheduler_.step(protocol::GoOn{rounds}));
  STORMO_RETURN_IF_ERROR(handle(first));
  while (!gathering_.empty()) STORMO_RETURN_IF_ERROR(end_oldest());
  return {};
}

Status RankRounds::handle(const std::vector<FromScheduler>& messages) {
  for (const FromScheduler& message : messages) {
    if (const auto* round = std::get_if<ComputeRound>(&message)) {
      STORMO_RETURN_IF_ERROR(compute(*round));
    } else if (std::holds_alternative<SetRound>(message)) {
      program_.set(gathering_.front().round.blocks, gathering_.front().values);
      gathering_.pop_front();
    } else {
      Gathering& oldest = gathering_.front();
      auto changes = aggregate_parts(program_, oldest.round, oldest.parts,
                                     static_cast<std::size_t>(world_.size()), oldest.values);
      const RoundAggregated aggregated{oldest.round.round, std::move(changes)};
      STORMO_ASSIGN_OR_RETURN(const auto answers, scheduler_.step(aggregated));
      STORMO_RETURN_IF_ERROR(handle(answers));
    }
  }
  return {};
}

Status RankRounds::compute(const ComputeRound& round) {
  note(round);
  Gathering& mine = gathering_.emplace_back();
  mine.round = round;
  mine.part.resize(program_.part_size(round.blocks));
  mine.parts.resize(mine.part.size() * static_cast<std::size_t>(world_.size()));
  program_.update(round.blocks, mine.part);
  if (scheduler_.options().depth == 0) return world_.all_gather(mine.part, mine.parts);
  mine.done = world_.all_gather_async(mine.part, mine.parts);
  return {};
}

Status RankRounds::end_oldest() {
  Gathering& oldest = gathering_.front();
  if (scheduler_.options().depth > 0) STORMO_RETURN_IF_ERROR(oldest.done.wait());
  const std::int64_t round = oldest.round.round;
  for (int worker = 0; worker < world_.size(); ++worker) {
    STORMO_ASSIGN_OR_RETURN(const auto answers,
                            scheduler_.step(protocol::PartComputed{worker, round}));
    STORMO_RETURN_IF_ERROR(handle(answers));
  }
  return {};
}

Result<Judgement> RankRounds::judge() {
  std::vector<double> part(program_.judged_size());
  program_.judged_part(part);
  STORMO_ASSIGN_OR_RETURN(const std::vector<double> sums, sum_of_parts(world_, part));
  return program_.judge(sums);
}

VirtualRoundsRun::VirtualRoundsRun(std::vector<std::unique_ptr<BlockProgram>> programs,
                                   protocol::Scheduler scheduler, protocol::VirtualWorkers workers)
    : programs_(std::move(programs)),
      scheduler_(std::move(scheduler)),
      workers_(std::move(workers)),
      waited_(programs_.size()) {}

Status VirtualRoundsRun::go_on(std::int64_t rounds) {
  protocol::RoundEvents events;
  events.compute = [this](int worker, const ComputeRound& round) {
    if (worker == 0) note(round);
    const std::size_t size = program(worker).part_size(round.blocks);
    auto& parts = rounds_[round.round].parts;
    parts.resize(size * programs_.size());
    program(worker).update(round.blocks,
                           std::span(parts).subspan(size * static_cast<std::size_t>(worker), size));
    return Status();
  };
  events.aggregate = [this](const ComputeRound& round) { return aggregate(round); };
  events.set = [this](int worker, const ComputeRound& round) {
    Round& data = rounds_.at(round.round);
    program(worker).set(round.blocks, data.values);
    if (++data.set == programs_.size()) rounds_.erase(round.round);
    return Status();
  };
  STORMO_ASSIGN_OR_RETURN(const protocol::VirtualRounds took,
                          protocol::run_virtual(scheduler_, rounds, workers_, events));
  ++workers_.seed;  // of the next rounds
  if (took.time > protocol::kMostVirtualTime - time_) {
    return invalid_argument(protocol::kVirtualTimeTooLong);
  }
  time_ += took.time;
  for (std::size_t w = 0; w < waited_.size(); ++w) waited_[w] += took.waited[w];
  return {};
}

Result<std::vector<double>> VirtualRoundsRun::aggregate(const ComputeRound& round) {
  Round& data = rounds_.at(round.round);
  // worker 0 has set what its parts are computed from, and no block is in flight twice
  return aggregate_parts(program(0), round, data.parts, programs_.size(), data.values);
}

Result<Judgement> VirtualRoundsRun::judge() {
  const std::size_t size = programs_[0]->judged_size();
  std::vector<double> parts(size * programs_.size());
  for (std::size_t w = 0; w < programs_.size(); ++w) {
    programs_[w]->judged_part(std::span(parts).subspan(size * w, size));
  }
  return programs_[0]->judge(sums_of(parts, programs_.size()));
}

}  // namespace stormo::strads
