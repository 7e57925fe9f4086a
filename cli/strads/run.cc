#include <fmt/format.h>

#include <csignal>

#include <cli/engine.h>
#include <cli/plan/output.h>
#include <cli/strads/program.h>
#include <cli/train/report.h>
#include <stormo/base/printable.h>
#include <stormo/comm/communicator.h>
#include <nlohmann/json.hpp>

namespace stormo::cli {
namespace {

std::string command_of(const StradsProgram& p) { return std::string("strads ") + p.name; }

/// Returns the exit code.
int say(const StradsProgram& p, const Status& why) {
  fmt::print(stderr, "stormo {}: {}\n", command_of(p), message_text(why.message()));
  return exit_code_of(why);
}

void say_how_to_go_on(StradsProgram& p) {
  fmt::print(stderr, "{}\n", how_to_continue(p.saved(), command_of(p).c_str()));
}

/// Says why there is no run, or no end of it; returns the exit code.
int end_with(const Status& failure, StradsProgram& p, comm::Communicator& group, bool launched) {
  const bool saved = failure.code() == Code::kPeerLost && !p.saved().empty();
  const bool refused = failure.code() == Code::kRefused;
  const bool is_first = group.rank() == 0;
  // a launcher of ours shows what rank 0 says, and ends all ranks: this one is leaving, and must
  // have said why. All know what all refuse, but the logs of other hosts may be elsewhere.
  if (saved || is_first) std::signal(SIGTERM, SIG_IGN);
  if (is_first || (!launched && (group.local_rank() == 0 || !refused))) say(p, failure);
  if (saved && is_first && !launched) say_how_to_go_on(p);
  if (group.size() > 1 && !refused) group.fail(failure);  // else the others learn no cause
  return saved ? kExitSaved : exit_code_of(failure);
}

/// `is_rank`: a launcher has started it, so nothing is checked yet.
int run_in(comm::Communicator& group, StradsProgram& p, bool is_rank, bool launched) {
  const bool is_first = group.rank() == 0;
  Wrong wrong;
  if (is_rank) p.check({group.size(), group.local_size(), is_first && !launched}, wrong);
  // no rank takes memory before all have looked how much there is
  Status ready = comm::check_agreement(group, wrong.empty() ? p.facts() : std::vector<comm::Fact>(),
                                       as_status(wrong));
  if (ready.ok()) ready = p.begin(group);
  const Result<bool> converges = ready.ok() ? run_and_report(p, is_first) : Result<bool>(ready);
  if (converges.ok()) return *converges ? kExitOk : kExitFailed;
  if (converges.status().code() != Code::kInterrupted) {
    return end_with(converges.status(), p, group, launched);
  }
  if (is_first) say_how_to_go_on(p);
  return 128 + p.signal;
}

/// Prints the plan; returns the exit code.
int dry_run(StradsProgram& p, int workers) {
  const Result<plan::StepPlan> plan = p.plan(workers);
  if (!plan.ok()) return say(p, plan.status());
  const std::string text = to_text(*plan);
  if (p.words.json) {
    print_json(nlohmann::ordered_json{{"event", "dry_run"}, {"plan", text}});
  } else {
    fmt::print("{}", text);
  }
  return kExitOk;
}

}  // namespace

int StradsProgram::join(const transport::Rendezvous& place,
                        const std::function<int(comm::Communicator&)>& run) {
  const auto world = join_world("stormo", place);
  if (!world.ok()) return say(*this, world.status());
  const int code = run(**world);
  const Status left = (*world)->finalize(Deadline::never());
  return code != kExitOk || left.ok() ? code : say(*this, left);
}

int StradsProgram::launch(const Invocation& invocation) const {
  return launch_copies(words.launch, invocation, "strads");
}

std::vector<comm::Fact> StradsProgram::facts() const {
  std::vector<comm::Fact> facts = {{"program", name}};
  for (const auto& row : words.rows) facts.push_back({row.flag, row.text()});
  return facts;
}

int run_program(StradsProgram& p, const Invocation& invocation) {
  const StradsArguments& a = p.words;
  const bool simulates = a.virtual_workers.has_value();
  const auto place = simulates ? Result(transport::Rendezvous()) : find_place("stormo", a.launch);
  if (!place.ok()) return say(p, place.status());
  const bool is_rank = place->source != "none";
  const auto run = [&] {
    return p.join(*place, [&](comm::Communicator& group) {
      const int code = run_in(group, p, is_rank, place->source == "stormo");
      p.end();
      return code;
    });
  };
  if (is_rank && !a.dry_run) return run();
  if (place->rank != 0) return kExitOk;  // the first rank says what the job would do
  Wrong wrong;
  StradsJob job{.workers = place->size, .here = place->local_size};
  if (!is_rank) {
    job = {.workers = workers_of(a, wrong), .here = simulates ? 1 : a.launch.ranks_here()};
  }
  p.check(job, wrong);
  if (!wrong.empty()) return say_failed(command_of(p).c_str(), kExitUsage, wrong, false);
  if (a.dry_run) return dry_run(p, job.workers);
  return simulates || !a.launch.wants_launch() ? run() : p.launch(invocation);
}

}  // namespace stormo::cli
