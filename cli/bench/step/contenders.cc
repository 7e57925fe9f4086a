#include <cli/bench/step/contenders.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include <cli/bench/step/task.h>

namespace stormo::cli {
namespace {

/// The inputs that scripts get: a file, and JSON that describes it.
struct ScriptInputs {
  std::string file, description;
};

/// `ranks` of this program; without the slow worker where they are fewer than those of the site.
Contender own_contender(const TrainingComparison& c, const BenchSite& of, const OwnContender& own,
                        int ranks) {
  BenchSite site = of;
  site.ranks = ranks;
  Contender out{.name = own.name,
                .records = static_cast<std::size_t>(ranks),
                .required = true,
                .malloc = own.malloc};
  std::vector<std::string>& words = out.command.words;
  words = run_words(site, Speaker::kEveryRank);
  append(words, malloc_words(own.malloc));
  append(words,
         {site.program, "bench", c.bench, "--contender", own.process, "--model",
          std::string(own.job.model->name), "--strategy", std::string(own.job.strategy->name),
          "--batch", std::to_string(own.job.batch), "--micro-batches",
          std::to_string(own.job.micro_batches), "--steps", std::to_string(own.job.steps)});
  if (c.slow.any() && ranks == of.ranks)
    append(words, {"-n", std::to_string(ranks), "--slow", c.slow_flag});
  return out;
}

/// A script of torch.distributed, one process per rank, which gets `form` as its first argument.
Result<Contender> torch_script(const TrainingComparison& c, const BenchSite& of,
                               const TrainingOpponent& opponent, const std::string& form,
                               const std::string& malloc, const ScriptInputs& inputs) {
  BenchSite site = of;
  site.ranks += opponent.more_ranks;
  STORMO_ASSIGN_OR_RETURN(Contender out,
                          torch_contender(site,
                                          {.name = std::string(opponent.name),
                                           .file = std::string(opponent.script),
                                           .arguments = {form, inputs.file, inputs.description},
                                           .speaker = Speaker::kEveryRank,
                                           .prefix = malloc_words(malloc),
                                           .imports = opponent.imports,
                                           .modules = opponent.modules},
                                          c.python));
  out.records = static_cast<std::size_t>(of.ranks);
  out.malloc = malloc;
  return out;
}

/// A script that starts the ranks itself.
Result<Contender> starting_script(const TrainingComparison& c, const BenchSite& site,
                                  const TrainingOpponent& opponent, const std::string& malloc,
                                  const ScriptInputs& inputs) {
  const std::string name(opponent.name), script(opponent.script);
  std::vector<std::string> files = opponent.modules;
  files.push_back(script);
  STORMO_RETURN_IF_ERROR(check_scripts(site, name, files));
  STORMO_ASSIGN_OR_RETURN(const std::string interpreter,
                          find_interpreter(name, c.tensorflow, opponent.imports, "--tensorflow"));
  Contender out{.name = name,
                .records = opponent.one_record ? 1 : static_cast<std::size_t>(site.ranks),
                .malloc = malloc};
  out.command.words = malloc_words(malloc);
  append(out.command.words, {interpreter, site.tools + "/" + script, std::to_string(site.ranks),
                             inputs.file, inputs.description});
  return out;
}

/// An opponent with one setting of malloc: in each of its forms.
Status add_opponent(const TrainingComparison& c, const BenchSite& site,
                    const TrainingOpponent& opponent, const std::string& malloc,
                    const ScriptInputs& inputs, std::vector<Contender>& out) {
  if (!opponent.process.empty()) {
    OwnContender own{std::string(opponent.name), std::string(opponent.process), c.job, malloc};
    if (!opponent.strategy.empty()) own.job.strategy = &async_strategy(opponent.strategy);
    out.push_back(own_contender(c, site, own, site.ranks + opponent.more_ranks));
    return {};
  }
  if (opponent.starts_ranks) {
    STORMO_ASSIGN_OR_RETURN(Contender one, starting_script(c, site, opponent, malloc, inputs));
    out.push_back(std::move(one));
    return {};
  }
  std::vector<std::string> forms = opponent.forms;
  if (forms.empty()) forms.emplace_back(opponent.name);
  for (const std::string& form : forms) {
    STORMO_ASSIGN_OR_RETURN(Contender one, torch_script(c, site, opponent, form, malloc, inputs));
    out.push_back(std::move(one));
  }
  return {};
}

Status add_opponent(const TrainingComparison& c, const BenchSite& site,
                    const TrainingOpponent& opponent, const ScriptInputs& inputs,
                    std::vector<Contender>& out) {
  STORMO_RETURN_IF_ERROR(check_opponent(opponent, c.job, site.ranks, c.slow.any()));
  STORMO_RETURN_IF_ERROR(add_opponent(c, site, opponent, kDefaultMalloc, inputs, out));
  return opponent.tuned ? add_opponent(c, site, opponent, kTunedMalloc, inputs, out) : Status();
}

}  // namespace

Result<std::vector<Contender>> gather_training(const TrainingComparison& c, const BenchSite& site,
                                               std::map<std::string, std::string>& left_out) {
  std::vector<Contender> out;
  for (const OwnContender& own : c.own) out.push_back(own_contender(c, site, own, site.ranks));
  ScriptInputs inputs{fmt::format("{}/{}.inputs", site.scratch, c.job.model->name), {}};
  STORMO_RETURN_IF_ERROR(write_step_inputs(c.inputs, inputs.file));
  STORMO_ASSIGN_OR_RETURN(inputs.description, describe_step(c.inputs, c.slow));
  for (const std::string& name : c.against) {
    const auto opponent = std::ranges::find(c.opponents, name, &TrainingOpponent::name);
    const Status added = add_opponent(c, site, *opponent, inputs, out);
    if (added.code() == Code::kInterrupted) return added;
    if (!added.ok()) left_out[name] = added.message();
  }
  return out;
}

Status check_own(const TrainingComparison& comparison, int ranks) {
  for (const OwnContender& own : comparison.own)
    STORMO_RETURN_IF_ERROR(step_recipe(own.job, ranks).status());
  return {};
}

}  // namespace stormo::cli
