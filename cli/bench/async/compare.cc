// The rounds of `stormo bench async`.
#include <string>
#include <utility>
#include <vector>

#include <cli/bench/async/table.h>
#include <cli/bench/commands.h>
#include <cli/bench/step/contenders.h>
#include <cli/bench/step/rank.h>

namespace stormo::cli {
namespace {

constexpr const char* kBenchAsync = "bench async";

/// Of the ways in which a contender ran the fastest counts.
Result<AsyncRow> row_of(const TrainingOutcome<bench::WorkerRecord>& out) {
  AsyncRow row{.job = out.comparison.job,
               .workers = out.site.ranks,
               .slow = out.comparison.slow,
               .ours = {},
               .against = {},
               .absent = out.left_out};
  std::vector<AsyncResult> results;
  for (std::size_t i = 0; i < out.contenders.size(); ++i) {
    const std::string& name = out.contenders[i].name;
    if (row.absent.contains(name)) continue;
    const bool none_slow = name == kFastWorkers;
    auto summary = summarize_workers(out.results[i], none_slow ? SlowWorker() : row.slow);
    STORMO_RETURN_IF_ERROR(summary.status().within(name));
    if (results.empty() || results.back().name != name)
      results.push_back({name, std::move(*summary)});
    else if (summary->rate() > results.back().summary.rate())
      results.back().summary = std::move(*summary);
  }
  row.ours = std::move(results.front());
  row.against.assign(std::make_move_iterator(results.begin() + 1),
                     std::make_move_iterator(results.end()));
  return row;
}

}  // namespace

int run_bench_async(const AsyncArguments& a) {
  const auto options = to_async_options(a);
  if (!options.ok()) return fail(kBenchAsync, options.status());
  const auto comparison_of = [&](const StepJob& job) {
    TrainingComparison c{.bench = "async",
                         .job = job,
                         .inputs = job,
                         .own = {},
                         .opponents = async_opponents(),
                         .against = options->against,
                         .python = a.python,
                         .tensorflow = a.tensorflow,
                         .slow = options->slow,
                         .slow_flag = a.slow};
    c.inputs.strategy = &async_strategy("one_device");  // of one worker
    for (const StepStrategy* strategy : options->strategies) {
      c.own.push_back({std::string(strategy->name), "stormo", job});
      c.own.back().job.strategy = strategy;
    }
    return c;
  };
  const auto report = [&](const auto& outcome) -> Result<Report> {
    STORMO_ASSIGN_OR_RETURN(const AsyncRow row, row_of(outcome));
    return Report{a.svg    ? async_picture(row)
                  : a.json ? async_json(row)
                           : async_table(row),
                  row.ours.summary.trained};
  };
  return run_training_bench(
      kBenchAsync, a.contender,
      [&] {
        return compare_models<bench::WorkerRecord>(a, *options, bench::parse_worker_records,
                                                   comparison_of, report);
      },
      [&] { return run_async_rank(options->jobs.front(), options->slow, a.contender); });
}

}  // namespace stormo::cli
