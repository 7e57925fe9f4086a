// The rounds of `stormo bench async`.
#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include <cli/bench/async/contenders.h>
#include <cli/bench/async/table.h>
#include <cli/bench/commands.h>
#include <cli/bench/site.h>
#include <cli/bench/step/rank.h>
#include <cli/bench/step/task.h>
#include <stormo/launch/process/signals.h>

namespace stormo::cli {
namespace {

constexpr const char* kBenchAsync = "bench async";

/// Of the ways in which a contender ran the fastest counts.
Result<AsyncRow> row_of(const StepJob& job, int workers, const SlowWorker& slow, AsyncField field) {
  AsyncRow row{.job = job, .workers = workers, .slow = slow, .ours = {}, .against = {}};
  row.absent = std::move(field.left_out);
  std::vector<AsyncResult> results;
  for (const AsyncContender& c : field.contenders) {
    if (row.absent.contains(c.name)) continue;
    auto summary = summarize_workers(c.rounds, c.way);
    STORMO_RETURN_IF_ERROR(summary.status().within(c.name));
    if (results.empty() || results.back().name != c.name)
      results.push_back({c.name, std::move(*summary)});
    else if (summary->rate() > results.back().summary.rate())
      results.back().summary = std::move(*summary);
  }
  row.ours = std::move(results.front());
  row.against.assign(std::make_move_iterator(results.begin() + 1),
                     std::make_move_iterator(results.end()));
  return row;
}

/// Every strategy must fit the number of workers.
Status check_strategies(const BenchAsyncOptions& options, int workers) {
  for (StepJob job : options.jobs) {
    for (const StepStrategy* strategy : options.strategies) {
      job.strategy = strategy;
      STORMO_RETURN_IF_ERROR(step_recipe(job, workers).status());
    }
  }
  return {};
}

/// False when a strategy did not learn.
Result<bool> compare(const AsyncArguments& arguments, const BenchAsyncOptions& options) {
  STORMO_ASSIGN_OR_RETURN(const auto signals, launch::SignalReader::create());
  STORMO_ASSIGN_OR_RETURN(const auto place,
                          BenchPlace::create(arguments.launch, arguments.tools, 0, "", 1));
  const BenchSite& site = place->site;
  STORMO_RETURN_IF_ERROR(check_strategies(options, site.ranks));
  bool right = true;
  for (const StepJob& job : options.jobs) {
    STORMO_ASSIGN_OR_RETURN(AsyncField field, gather_async(site, job, options, arguments));
    STORMO_RETURN_IF_ERROR(measure(field, options.rounds, bench::parse_worker_records));
    STORMO_ASSIGN_OR_RETURN(const AsyncRow row,
                            row_of(job, site.ranks, options.slow, std::move(field)));
    for (const auto& [name, reason] : row.absent)
      fmt::print(stderr, "stormo bench async: not available: {}\n", reason);
    fmt::print("{}\n", arguments.svg    ? async_picture(row)
                       : arguments.json ? async_json(row)
                                        : async_table(row));
    std::fflush(stdout);
    right = right && row.ours.summary.trained;
  }
  return right;
}

}  // namespace

int run_bench_async(const AsyncArguments& arguments) {
  const auto options = to_async_options(arguments);
  if (!options.ok()) return fail(kBenchAsync, options.status());
  return run_bench(
      kBenchAsync, arguments.contender, [&] { return compare(arguments, *options); },
      [&] { return run_async_rank(options->jobs.front(), options->slow, arguments.contender); });
}

}  // namespace stormo::cli
