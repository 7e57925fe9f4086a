#include <cli/bench/async/contenders.h>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include <cli/bench/step/task.h>

namespace stormo::cli {
namespace {

constexpr std::string_view kSync = "parameter_server:sync";

const StepStrategy* strategy_of(std::string_view name) {
  return &*std::ranges::find(async_strategies(), name, &StepStrategy::name);
}

/// Gathers the contenders of one model.
class Gathering {
 public:
  Gathering(BenchSite site, StepJob job, const BenchAsyncOptions& options,
            const AsyncArguments& arguments)
      : site_(std::move(site)), job_(job), options_(options), arguments_(arguments) {
    alone_ = job_;
    alone_.strategy = strategy_of("one_device");
  }

  Result<AsyncField> gather() {
    for (const StepStrategy* strategy : options_.strategies) {
      StepJob job = job_;
      job.strategy = strategy;
      add_own(std::string(strategy->name), job, site_.ranks, options_.slow, "stormo", {});
    }
    inputs_ = fmt::format("{}/{}.inputs", site_.scratch, job_.model->name);
    STORMO_RETURN_IF_ERROR(write_step_inputs(alone_, inputs_));
    STORMO_ASSIGN_OR_RETURN(description_, describe());
    for (const std::string& name : options_.against) {
      const Status added = add_opponent(name);
      if (added.code() == Code::kInterrupted) return added;
      if (!added.ok()) field_.left_out[name] = added.message();
    }
    return std::move(field_);
  }

 private:
  /// The model, the run, and who is slow.
  Result<std::string> describe() const {
    STORMO_ASSIGN_OR_RETURN(const std::string text, describe_step(alone_));
    auto all = nlohmann::json::parse(text);
    all["slow"] = {{"factor", options_.slow.factor},
                   {"worker", options_.slow.worker},
                   {"in_turns", options_.slow.in_turns}};
    return all.dump();
  }

  void add_own(const std::string& name, const StepJob& job, int workers, const SlowWorker& slow,
               const std::string& process, const std::vector<std::string>& prefix) {
    AsyncContender c{.name = name,
                     .contender = {.name = name},
                     .processes = static_cast<std::size_t>(workers),
                     .ours = true,
                     .way = slow};
    BenchSite site = site_;
    site.ranks = workers;
    std::vector<std::string>& words = c.contender.command.words;
    words = run_words(site, Speaker::kEveryRank);
    append(words, prefix);
    append(words,
           {site.program, "bench", "async", "-n", std::to_string(workers), "--contender", process,
            "--model", std::string(job.model->name), "--strategy", std::string(job.strategy->name),
            "--batch", std::to_string(job.batch), "--steps", std::to_string(job.steps)});
    if (slow.any()) append(words, {"--slow", arguments_.slow});
    field_.contenders.push_back(std::move(c));
  }

  Status add_opponent(const std::string& name) {
    if (name == "fast_workers") {
      StepJob job = job_;
      job.strategy = strategy_of(kSync);
      add_own(name, job, site_.ranks - 1, {}, "stormo", {});
      return {};
    }
    for (const auto& prefix : {std::vector<std::string>(), tuned_malloc_words()}) {
      if (name == "no_communication") {
        add_own(name, alone_, site_.ranks, options_.slow, "plain", prefix);
      } else if (name == "tensorflow_ps") {
        STORMO_RETURN_IF_ERROR(add_tensorflow(name, 1, prefix));
      } else if (name == "tensorflow_mirrored") {
        STORMO_RETURN_IF_ERROR(add_tensorflow(name, site_.ranks, prefix));
      } else {
        for (const char* form : {"tensors", "flat"})
          STORMO_RETURN_IF_ERROR(add_torch(form, prefix));
      }
    }
    return {};
  }

  /// One more process than there are workers: the server.
  Status add_torch(const std::string& form, const std::vector<std::string>& prefix) {
    BenchSite site = site_;
    site.ranks = site_.ranks + 1;
    STORMO_ASSIGN_OR_RETURN(
        Contender contender,
        torch_contender(site,
                        {.name = "torch_rpc",
                         .file = "torch_rpc_step.py",
                         .arguments = {form, inputs_, description_},
                         .speaker = Speaker::kEveryRank,
                         .prefix = prefix,
                         .imports = {{"from torch.distributed import rpc", "torch"}},
                         .modules = {"torch_step.py"}},
                        arguments_.python));
    field_.contenders.push_back({.name = "torch_rpc",
                                 .contender = std::move(contender),
                                 .processes = static_cast<std::size_t>(site_.ranks),
                                 .way = options_.slow});
    return {};
  }

  /// Its script starts the workers. `records`: one for all of them, or one of each.
  Status add_tensorflow(const std::string& name, int records,
                        const std::vector<std::string>& prefix) {
    if (job_.model->recipe.front() != "model.kind=mlp")
      return invalid_argument(name + ": its script has fully connected models only");
    if (options_.slow.any())
      return invalid_argument(name + ": none of its workers can be made slow");
    // both read their inputs by the first of these scripts
    STORMO_RETURN_IF_ERROR(
        check_scripts(site_, name, {"tensorflow_ps_step.py", name + "_step.py"}));
    const std::string file = site_.tools + "/" + name + "_step.py";
    STORMO_ASSIGN_OR_RETURN(
        const std::string interpreter,
        find_interpreter(name, arguments_.tensorflow,
                         {{"import numpy", "numpy"}, {"import tensorflow", "tensorflow-cpu"}},
                         "--tensorflow"));
    AsyncContender c{
        .name = name, .contender = {.name = name}, .processes = static_cast<std::size_t>(records)};
    append(c.contender.command.words, prefix);
    append(c.contender.command.words,
           {interpreter, file, std::to_string(site_.ranks), inputs_, description_});
    field_.contenders.push_back(std::move(c));
    return {};
  }

  const BenchSite site_;
  const StepJob job_;
  StepJob alone_;  ///< the same for one worker
  const BenchAsyncOptions& options_;
  const AsyncArguments& arguments_;
  std::string inputs_;       // a file
  std::string description_;  // JSON
  AsyncField field_;
};

}  // namespace

Result<AsyncField> gather_async(const BenchSite& site, const StepJob& job,
                                const BenchAsyncOptions& options, const AsyncArguments& arguments) {
  return Gathering(site, job, options, arguments).gather();
}

}  // namespace stormo::cli
