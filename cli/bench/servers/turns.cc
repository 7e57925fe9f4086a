#include <cli/bench/servers/turns.h>

#include <span>

#include <bench/measure.h>

namespace stormo::cli {
namespace {

/// The ranks make turns for so long; returns how many all of them together make per second. A
/// collective.
Result<double> turns_per_second(comm::Communicator& world, double seconds,
                                const std::function<Status()>& turn) {
  if (turn) STORMO_RETURN_IF_ERROR(turn());  // memory that is new
  STORMO_RETURN_IF_ERROR(world.barrier());
  double rate = 0;
  if (turn) {
    const double begin = bench::now();
    double turns = 0, end = begin;
    for (; end - begin < seconds; end = bench::now(), ++turns) STORMO_RETURN_IF_ERROR(turn());
    rate = turns / (end - begin);
  }
  STORMO_RETURN_IF_ERROR(world.all_reduce(std::span(&rate, 1), comm::ReduceOp::kSum));
  return rate;
}

}  // namespace

Status measure_turns(comm::Communicator& world, const BenchServersOptions& options,
                     const std::vector<TurnLoop>& loops) {
  for (int round = 0; round < options.rounds; ++round) {
    for (const auto& [rates, turn] : loops) {
      STORMO_ASSIGN_OR_RETURN(const double rate, turns_per_second(world, options.seconds, turn));
      rates.push_back(rate);
    }
  }
  return {};
}

}  // namespace stormo::cli
