#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/strads/run.h>

namespace stormo::cli {

using StradsFigures = std::vector<std::pair<std::string, double>>;

/// How long a program of `stormo strads` runs, and what it prints.
struct StradsLoop {
  std::int64_t rounds = 0;  ///< at most
  std::int64_t every =
      1;  ///< rounds between two judgements, from the first round on; 0: as `updates` says
  /// Updates between two judgements, or somewhat more; where rounds are in flight besides the
  /// oldest one, at least so many that those drained for a judgement do not count.
  std::int64_t updates = 0;
  double tolerance = 0;  ///< ends when gap <= tolerance * objective
  int workers = 1;
  bool speaks = true;  ///< rank 0
  bool json = false;
  const strads::VirtualRoundsRun* simulated = nullptr;  ///< null: real time alone
  /// Hash of the values, for the end; a collective.
  std::function<Result<std::uint64_t>()> values_hash;
  /// Called after each judgement but the first one, unless the updates diverge. A collective.
  std::function<Status(bool last)> judged = [](bool) { return Status(); };
  /// Whether to end now: then judged(true) is called, and the run is kInterrupted. Asked before
  /// each judgement and, where that changes nothing (real time, depth 0), every few rounds. A
  /// collective; null: never.
  std::function<Result<bool>()> stops = nullptr;
  /// What the end says besides, by name, such as {"test_loss", 0.1}; a collective.
  std::function<Result<StradsFigures>()> figures = [] { return StradsFigures(); };
};

/// Runs, and prints a line for each judgement and a summary. False: it diverged.
Result<bool> run_strads_loop(strads::RoundsRun& run, const StradsLoop& loop);

/// FNV-1a of numbers.
std::uint64_t hash_of(std::span<const double> values, std::uint64_t basis = 0xcbf29ce484222325ull);

}  // namespace stormo::cli
