#pragma once

#include <cstdint>
#include <vector>

#include <stormo/parallel/strategy/strategy.h>

namespace stormo::parallel {

/// A synchronous way to train: each of them gives the numbers of one process.
struct Candidate {
  Strategy strategy;
  int micro_batches = 1;
  bool recompute = false;
  bool operator==(const Candidate&) const = default;
};

/// What a search for the fastest strategy compares, on ranks that lie on hosts like this:
/// - each product of replicas, stages, ranks that compute layers together and, with `by_positions`,
///   ranks that have parts of the positions, these with each form of attention, and layers with
///   sequence parallelism and without; of stages each schedule whose steps do not overlap, with up
///   to 4 chunks where it has several;
/// - without a cut, replicated and host-shared parameters;
/// - in place of replicas each stage of sharding over all of them and, on several hosts, inside of
///   hosts; with a pipeline not stage 2, which needs the memory and the time of stage 1;
/// - of each of them powers of two of micro-batches, and multiples of the stages by such, up to one
///   sample of `global_batch` each; with recomputation and without.
/// Models and hosts do not allow all of them: plan_for() refuses the others. O(result).
std::vector<Candidate> candidates(const Workers& workers, std::int64_t global_batch,
                                  bool by_positions);

}  // namespace stormo::parallel
