#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <cli/bench/contenders.h>
#include <cli/bench/table.h>

namespace stormo::cli {

/// What every contender measured: [contender][round][record].
template <class Record>
using RoundResults = std::vector<std::vector<std::vector<Record>>>;

/// Runs every contender once per round, in alternating order, after their commands were shown on
/// stderr, and says there which round has ended. `take` gets what the contender of that index said;
/// its error ends the rounds.
Status each_round(const std::vector<Contender>& contenders, int rounds,
                  const std::function<Status(std::size_t, const ChildOutcome&)>& take);
/// What to say of a contender whose output is not what was asked for.
Status unexpected(const Contender& contender, const ChildOutcome& outcome);

/// All contenders in every round. One that fails is the failure of all if it is required, else it
/// is added to `left_out`. `parse` reads what a contender says.
template <class Record>
Result<RoundResults<Record>> run_rounds(const std::vector<Contender>& contenders, int rounds,
                                        Result<std::vector<Record>> (*parse)(std::string_view),
                                        std::map<std::string, std::string>& left_out) {
  RoundResults<Record> results(contenders.size());
  const auto take = [&](std::size_t index, const ChildOutcome& outcome) -> Status {
    const Contender& contender = contenders[index];
    auto records = parse(outcome.out);
    if (records.ok() && records->size() == contender.records) {
      results[index].push_back(std::move(*records));
      return {};
    }
    const Status failed = unexpected(contender, outcome);
    if (contender.required) return failed;
    left_out[contender.name] = failed.message();
    return {};
  };
  STORMO_RETURN_IF_ERROR(each_round(contenders, rounds, take));
  return results;
}

/// A row per size; the first contender is Stormo.
std::vector<BenchRow> rows_of(const std::vector<Contender>& contenders,
                              const RoundResults<bench::Measurement>& results,
                              const std::string& rate);

}  // namespace stormo::cli
