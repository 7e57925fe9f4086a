// What `stormo plan search` prints.
#include <cli/plan/found.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <ranges>
#include <utility>

#include <cli/plan/output.h>
#include <cli/plan/ways.h>

namespace stormo::cli {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kShownWays = 10;
constexpr std::size_t kShownReasons = 5;

Json to_json(const train::Outcome& w, const train::Recipe& recipe) {
  return {{"event", "candidate"},
          {"plan", w.step.plan.strategy},
          {"seconds", w.seconds},
          {"idle_share", w.idle},
          {"memory", w.peak.total()},
          {"samples", w.step.samples},
          {"keys", keys_of(w.candidate, recipe.train)}};
}

/// A way, its time, and the parts of it: what a rank computes on average, what it would wait for
/// others if communication took no time, and what communication adds.
Result<std::vector<std::string>> row_of(const comm::StepModel& model, const train::Outcome& w,
                                        const train::Recipe& recipe) {
  STORMO_ASSIGN_OR_RETURN(const analysis::StepSimulation free, model.without_communication(w.step));
  const double waiting = free.idle_share() * free.seconds;
  return std::vector<std::string>{
      time_text(w.seconds),
      time_text(free.seconds - waiting),
      time_text(waiting),
      time_text(w.seconds - free.seconds),
      bytes_text(w.peak.total()),
      fmt::format("{}", fmt::join(keys_of(w.candidate, recipe.train), " "))};
}

/// Without the name of the plan that was begun.
std::string reason_of(const std::string& message) {
  const std::size_t end = message.find(": ");
  return message.starts_with("after ") && end != std::string::npos ? message.substr(end + 2)
                                                                   : message;
}

void print_refused(const train::Found& found) {
  if (found.refused.empty()) return;
  std::map<std::string, int> reasons;
  int all = 0;
  for (const auto& [message, times] : found.refused) {
    reasons[reason_of(message)] += times;
    all += times;
  }
  std::vector<std::pair<int, std::string>> sorted;
  for (const auto& [reason, times] : reasons) sorted.emplace_back(-times, reason);
  std::ranges::sort(sorted);  // the most frequent first
  print_line(fmt::format("{} ways are refused:", all));
  for (const auto& [times, reason] : sorted | std::views::take(kShownReasons)) {
    print_line(fmt::format("{:>6}  {}", -times, reason));
  }
  if (sorted.size() > kShownReasons) {
    print_line(fmt::format("   ...  --json has all {} reasons", sorted.size()));
  }
}

}  // namespace

void print_found_json(const train::Found& found, const train::Recipe& recipe,
                      const std::optional<OneProcess>& one_process,
                      const std::optional<CodedWay>& coded) {
  for (const train::Outcome& w : found.fitting) print_json(to_json(w, recipe));
  Json end = {{"event", "end"},
              {"fitting", found.fitting.size()},
              {"too_large", found.too_large},
              {"refused", found.refused}};
  if (coded) {
    end["codecs"] = {{"keys", keys_of(coded->way.candidate, recipe.train)},
                     {"ways", Json::parse(ways_json(coded->codecs))}};
  }
  if (one_process) end["one_process_seconds"] = one_process->seconds;
  print_json(end);
}

Status print_found(const comm::StepModel& model, const train::Found& found,
                   const train::Recipe& recipe, std::int64_t memory,
                   const std::optional<OneProcess>& one_process,
                   const std::optional<CodedWay>& coded) {
  Rows rows{{"step", "computing", "waiting", "communication", "memory of a rank", "keys"}};
  for (const train::Outcome& w : found.fitting | std::views::take(kShownWays)) {
    STORMO_ASSIGN_OR_RETURN(std::vector<std::string> row, row_of(model, w, recipe));
    rows.push_back(std::move(row));
  }
  const std::vector<int>& ranks_per_host = found.fitting.front().step.ranks_per_host;
  print_line(fmt::format(
      "{} on {} rank(s) of {} host(s), batch {}: {} ways fit into {} on each rank, {} do not",
      recipe.train.name, std::accumulate(ranks_per_host.begin(), ranks_per_host.end(), 0),
      ranks_per_host.size(), recipe.train.global_batch, found.fitting.size(), bytes_text(memory),
      found.too_large));
  print_table(rows, false);
  print_line(
      "A step is what a rank computes on average, what it waits for other ranks even if "
      "communication took no time, and what communication adds.");
  if (found.smallest) {
    print_line(fmt::format("{} ways need too much memory; the smallest of them {}: {}",
                           found.too_large, bytes_text(found.smallest->peak.total()),
                           fmt::join(keys_of(found.smallest->candidate, recipe.train), " ")));
  }
  print_refused(found);
  if (coded) {
    print_line(fmt::format("with each strategy.compression: {}",
                           fmt::join(keys_of(coded->way.candidate, recipe.train), " ")));
    print_ways(coded->codecs, {.compression = true});
  }
  if (one_process) {
    const bool faster = one_process->seconds < found.fitting.front().seconds;
    print_line(fmt::format(
        "one process with {} thread{} here takes {}{}", one_process->threads,
        one_process->threads == 1 ? "" : "s", time_text(one_process->seconds),
        faster ? fmt::format(": it is faster; use -n 1 threads={}", one_process->threads) : ""));
  }
  return {};
}

}  // namespace stormo::cli
