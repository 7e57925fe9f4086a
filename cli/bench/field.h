#pragma once

#include <cstdio>
#include <exception>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <cli/bench/contenders.h>
#include <cli/bench/rounds.h>
#include <cli/failure.h>

namespace stormo::cli {

/// A contender of a benchmark of training, in one of the ways in which it may run, and what its
/// processes measured.
template <class Record, class Way>
struct Entrant {
  std::string name;
  Contender contender;
  std::size_t processes = 1;  ///< that print a record
  bool ours = false;          ///< must not fail
  Way way = {};
  std::vector<std::vector<Record>> rounds = {};  ///< [round][process]
};

/// What one model is measured with, and who is not there.
template <class Record, class Way>
struct Field {
  std::vector<Entrant<Record, Way>> contenders;
  std::map<std::string, std::string> left_out;  ///< name and reason
};

/// All rounds. An opponent that fails is left out; what is ours must not fail.
template <class Record, class Way>
Status measure(Field<Record, Way>& field, int rounds,
               Result<std::vector<Record>> (*parse)(std::string_view)) {
  std::vector<Contender> contenders;
  for (const auto& c : field.contenders) contenders.push_back(c.contender);
  show_commands(contenders);
  const auto take = [&](std::size_t index, Result<ChildOutcome> outcome) -> Status {
    STORMO_RETURN_IF_ERROR(outcome.status().within(contenders[index].name));
    auto& c = field.contenders[index];
    auto records = parse(outcome->out);
    if (records.ok() && records->size() == c.processes) {
      c.rounds.push_back(std::move(*records));
      return {};
    }
    const Status failed = unexpected(contenders[index], *outcome);
    if (c.ours) return failed;
    field.left_out[c.name] = failed.message();
    return {};
  };
  const auto note = [](const std::string& text) { std::fprintf(stderr, "%s\n", text.c_str()); };
  return each_round(contenders, rounds, take, note);
}

/// The exit code of a benchmark of training: of the process that runs the rounds (`compare`: false
/// when a result was wrong), or of a process of a round.
template <class Compare, class RunRank>
int run_bench(const char* name, const std::string& contender, const Compare& compare,
              const RunRank& run_rank) {
  try {
    if (contender.empty()) {
      const Result<bool> right = compare();
      if (!right.ok()) return fail(name, right.status());
      return *right ? kExitOk : kExitFailed;
    }
    const Status status = run_rank();
    return status.ok() ? kExitOk : fail(name, status);
  } catch (const std::exception& e) {
    return fail(name, Status(Code::kException, e.what()));
  }
}

}  // namespace stormo::cli
