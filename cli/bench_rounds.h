#pragma once

#include <functional>
#include <string>
#include <vector>

#include <cli/bench_contenders.h>
#include <cli/bench_table.h>

namespace stormo::cli {

/// What every contender measured: [contender][round][size].
using RoundResults = std::vector<std::vector<std::vector<bench::Measurement>>>;

/// All contenders in every round, in alternating order. `note` gets a line per round.
Result<RoundResults> run_rounds(const std::vector<Contender>& contenders,
                                const BenchOptions& options,
                                const std::function<void(const std::string&)>& note);

/// A row per size; the first contender is Stormo.
std::vector<BenchRow> rows_of(const std::vector<Contender>& contenders, const RoundResults& results,
                              const std::string& rate);

}  // namespace stormo::cli
