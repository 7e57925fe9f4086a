// The rounds of `stormo bench step`.
#include <cli/bench/commands.h>

#include <fmt/format.h>

#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <cli/bench/contenders.h>
#include <cli/bench/field.h>
#include <cli/bench/site.h>
#include <cli/bench/step/opponents.h>
#include <cli/bench/step/options.h>
#include <cli/bench/step/rank.h>
#include <cli/bench/step/table.h>
#include <cli/bench/step/task.h>
#include <stormo/launch/process/signals.h>

namespace stormo::cli {
namespace {

constexpr const char* kBenchStep = "bench step";

/// The way is a setting of malloc.
using StepContender = Entrant<bench::StepRecord, std::string>;
using StepField = Field<bench::StepRecord, std::string>;

StepContender own_contender(const BenchSite& site, const StepJob& job, const std::string& name,
                            const std::string& process, const std::string& malloc) {
  StepContender c{.name = name,
                  .contender = {.name = name},
                  .processes = static_cast<std::size_t>(site.ranks),
                  .ours = true,
                  .way = malloc};
  std::vector<std::string>& words = c.contender.command.words;
  words = run_words(site, Speaker::kEveryRank);
  if (malloc == kTunedMalloc) append(words, tuned_malloc_words());
  append(words, {site.program, "bench", "step", "--contender", process, "--model",
                 std::string(job.model->name), "--strategy", std::string(job.strategy->name),
                 "--batch", std::to_string(job.batch), "--micro-batches",
                 std::to_string(job.micro_batches), "--steps", std::to_string(job.steps)});
  return c;
}

Result<StepContender> torch_step(const BenchSite& site, const std::string& python,
                                 const std::string& name, const std::string& malloc,
                                 const std::string& inputs, const std::string& description) {
  TorchScript script{.name = name,
                     .file = "torch_step.py",
                     .arguments = {name, inputs, description},
                     .speaker = Speaker::kEveryRank,
                     .imports = imports_of_step_opponent(name)};
  if (malloc == kTunedMalloc) script.prefix = tuned_malloc_words();
  STORMO_ASSIGN_OR_RETURN(Contender contender, torch_contender(site, script, python));
  return StepContender{.name = name,
                       .contender = std::move(contender),
                       .processes = static_cast<std::size_t>(site.ranks),
                       .way = malloc};
}

Result<StepField> gather(const BenchSite& site, const StepJob& job, const BenchStepOptions& options,
                         const std::string& python) {
  StepField field;
  field.contenders.push_back(own_contender(site, job, "stormo", "stormo", kDefaultMalloc));
  for (const char* malloc : {kDefaultMalloc, kTunedMalloc})
    field.contenders.push_back(own_contender(site, job, "no_communication", "plain", malloc));
  const std::string inputs = fmt::format("{}/{}.inputs", site.scratch, job.model->name);
  STORMO_RETURN_IF_ERROR(write_step_inputs(job, inputs));
  STORMO_ASSIGN_OR_RETURN(const std::string description, describe_step(job));
  for (const std::string& name : options.against) {
    if (name == "arena" || name == "predicted") {
      field.contenders.push_back(own_contender(site, job, name, name, kDefaultMalloc));
      continue;
    }
    if (const Status able = check_step_opponent(name, job, site.ranks); !able.ok()) {
      field.left_out[name] = able.message();
      continue;
    }
    for (const char* malloc : {kDefaultMalloc, kTunedMalloc}) {
      if (name == "one_process") {
        field.contenders.push_back(own_contender(site, job, name, name, malloc));
        continue;
      }
      auto opponent = torch_step(site, python, name, malloc, inputs, description);
      if (opponent.status().code() == Code::kInterrupted) return opponent.status();
      if (opponent.ok())
        field.contenders.push_back(std::move(*opponent));
      else
        field.left_out[name] = opponent.status().message();
    }
  }
  return field;
}

StepRow row_of(const StepJob& job, const BenchSite& site, StepField field) {
  StepRow row{.job = job, .ranks = site.ranks, .hosts = site.hosts};
  row.left_out = std::move(field.left_out);
  std::vector<std::string> names;
  std::map<std::string, std::map<std::string, StepSummary>> tried;
  for (const StepContender& c : field.contenders) {
    if (row.left_out.contains(c.name)) continue;
    if (!tried.contains(c.name)) names.push_back(c.name);
    tried[c.name][c.way] = summarize(c.rounds);
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

/// False when losses were wrong.
Result<bool> compare(const StepArguments& arguments, const BenchStepOptions& options) {
  // between two children a signal waits for the next one: hosts are always taken away
  STORMO_ASSIGN_OR_RETURN(const auto signals, launch::SignalReader::create());
  STORMO_ASSIGN_OR_RETURN(const auto place,
                          BenchPlace::create(arguments.launch, arguments.tools, options.namespaces,
                                             options.rate, arguments.ranks_per_host));
  const BenchSite& site = place->site;
  for (const StepJob& job : options.jobs)
    STORMO_RETURN_IF_ERROR(step_recipe(job, site.ranks).status());
  bool right = true;
  for (const StepJob& job : options.jobs) {
    STORMO_ASSIGN_OR_RETURN(StepField field, gather(site, job, options, arguments.python));
    STORMO_RETURN_IF_ERROR(measure(field, options.rounds, bench::parse_step_records));
    const StepRow row = row_of(job, site, std::move(field));
    for (const auto& [name, reason] : row.left_out)
      fmt::print(stderr, "stormo bench step: left out: {}\n", reason);
    fmt::print("{}\n", arguments.json ? step_json(row) : step_table(row));
    std::fflush(stdout);
    right = right && verified(row);
  }
  return right;
}

}  // namespace

int run_bench_step(const StepArguments& arguments) {
  const auto options = to_step_options(arguments);
  if (!options.ok()) return fail(kBenchStep, options.status());
  return run_bench(
      kBenchStep, arguments.contender, [&] { return compare(arguments, *options); },
      [&] { return run_step_rank(options->jobs.front(), arguments.contender); });
}

}  // namespace stormo::cli
