#pragma once

#include <functional>
#include <string>
#include <vector>

#include <cli/bench/contenders.h>
#include <cli/bench/table.h>

namespace stormo::cli {

/// What every contender measured: [contender][round][size].
using RoundResults = std::vector<std::vector<std::vector<bench::Measurement>>>;

/// Runs every contender once per round, in alternating order. `take` gets what the contender of
/// that index said, and whether it could be run; its error ends the rounds. `note` gets a line per
/// round.
Status each_round(const std::vector<Contender>& contenders, int rounds,
                  const std::function<Status(std::size_t, Result<ChildOutcome>)>& take,
                  const std::function<void(const std::string&)>& note);
/// What to say of a contender whose output is not what was asked for.
Status unexpected(const Contender& contender, const ChildOutcome& outcome);

/// All contenders in every round. `note` gets a line per round.
Result<RoundResults> run_rounds(const std::vector<Contender>& contenders,
                                const BenchOptions& options,
                                const std::function<void(const std::string&)>& note);

/// A row per size; the first contender is Stormo.
std::vector<BenchRow> rows_of(const std::vector<Contender>& contenders, const RoundResults& results,
                              const std::string& rate);

}  // namespace stormo::cli
