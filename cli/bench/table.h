#pragma once

#include <string>
#include <vector>

#include <bench/record.h>
#include <bench/statistics.h>
#include <cli/bench/options.h>

namespace stormo::cli {

/// An opponent at one size.
struct Versus {
  std::string name;
  bench::Measurement theirs;  ///< medians over the rounds
  bench::Spread ratio;        ///< their p50 / ours, of the same round
};

/// One size over all rounds.
struct BenchRow {
  bench::Measurement ours;  ///< medians over the rounds; verified: in all of them
  int rounds = 0;
  double line = 0;  ///< busbw / what the link carries; 0: not shaped
  std::vector<Versus> against;
};

/// Lines for people, without their ends.
std::string bench_heading(const BenchOptions& options, int ranks, int hosts);
std::string bench_columns(bool shaped = false);
std::string bench_line(const bench::Measurement& m, double line = 0);
std::string bench_table(const std::vector<BenchRow>& rows);

/// One line of JSON, without its end.
std::string row_json(const BenchRow& row);

/// "0.436 us", "1.71 ms": three digits.
std::string short_time(double seconds);

}  // namespace stormo::cli
