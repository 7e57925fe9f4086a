// The rounds of `stormo bench step`.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <cli/bench/commands.h>
#include <cli/bench/step/contenders.h>
#include <cli/bench/step/rank.h>
#include <cli/bench/step/table.h>

namespace stormo::cli {
namespace {

constexpr const char* kBenchStep = "bench step";

StepRow row_of(const TrainingOutcome<bench::StepRecord>& out) {
  StepRow row{.job = out.comparison.job,
              .ranks = out.site.ranks,
              .hosts = out.site.hosts,
              .left_out = out.left_out};
  std::vector<std::string> names;
  std::map<std::string, std::map<std::string, StepSummary>> tried;
  for (std::size_t i = 0; i < out.contenders.size(); ++i) {
    const Contender& c = out.contenders[i];
    if (row.left_out.contains(c.name)) continue;
    if (!tried.contains(c.name)) names.push_back(c.name);
    tried[c.name][c.malloc] = summarize(out.results[i]);
  }
  for (const std::string& name : names) {
    StepResult result = choose_malloc(name, std::move(tried[name]));
    if (name == "stormo")
      row.ours = result.best();
    else if (name == "no_communication")
      row.without_communication = std::move(result);
    else if (name == "predicted")
      row.predicted = result.best();
    else
      row.against.push_back(std::move(result));
  }
  return row;
}

}  // namespace

int run_bench_step(const StepArguments& a) {
  const auto options = to_step_options(a);
  if (!options.ok()) return fail(kBenchStep, options.status());
  const auto comparison_of = [&](const StepJob& job) {
    return TrainingComparison{.bench = "step",
                              .job = job,
                              .inputs = job,
                              .own = {{"stormo", "stormo", job},
                                      {"no_communication", "plain", job},
                                      {"no_communication", "plain", job, kTunedMalloc}},
                              .opponents = step_opponents(),
                              .against = options->against,
                              .python = a.python};
  };
  const auto report = [&](const auto& outcome) -> Result<Report> {
    const StepRow row = row_of(outcome);
    return Report{a.json ? step_json(row) : step_table(row), verified(row)};
  };
  return run_training_bench(
      kBenchStep, a.contender,
      [&] {
        return compare_models<bench::StepRecord>(a, *options, bench::parse_step_records,
                                                 comparison_of, report);
      },
      [&] { return run_step_rank(options->jobs.front(), a.contender); });
}

}  // namespace stormo::cli
