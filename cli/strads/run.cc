#include <cli/strads/run.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include <cli/engine.h>
#include <stormo/comm/communicator.h>
#include <stormo/launch/host_spec.h>
#include <stormo/strads/data_files.h>
#include <stormo/strads/round_plan.h>

namespace stormo::cli {
namespace {

using Wrong = std::vector<std::string>;

int exit_code_of_run(const Status& status) {
  const bool usage = status.code() == Code::kInvalidArgument || status.code() == Code::kRefused;
  return usage ? kExitUsage : kExitFailed;
}

int fail_strads(const char* name, const Status& status) {
  fmt::print(stderr, "stormo strads {}: {}\n", name, status.message());
  return exit_code_of_run(status);
}

/// Of the ranks that -n and -H ask for, those that are certainly on this host.
int ranks_here(const LaunchFlags& flags) {
  Wrong said_by_check;
  int ranks = 0;
  for (const launch::HostShare& share : place_of_ranks(flags, said_by_check)) {
    if (launch::is_this_host(share.name)) ranks += share.ranks;
  }
  return ranks;
}

/// A program whose workers are ready, without its data.
struct ReadyProgram {
  StradsProgram program;
  strads::RoundsRun rounds;
  std::vector<comm::Fact> facts;  // of the data
};

/// Prints the plan of so many workers; returns the exit code.
int dry_run(const StradsArguments& a, const StradsMaker& maker, int workers) {
  const auto plan = [&]() -> Result<plan::StepPlan> {
    STORMO_ASSIGN_OR_RETURN(const StradsProgram program, maker.make(1));
    STORMO_ASSIGN_OR_RETURN(const auto worker, program.worker(0, workers));
    return strads::round_plan(worker->variables(), workers, program.schedule, program.loop);
  }();
  if (!plan.ok()) return fail_strads(maker.name, plan.status());
  print_round_plan(*plan, a.json);
  return kExitOk;
}

/// In virtual time this process has all workers.
Result<ReadyProgram> make_ready(comm::Communicator& world, const StradsArguments& a,
                                const StradsMaker& maker) {
  STORMO_ASSIGN_OR_RETURN(StradsProgram program, maker.make(world.local_size()));
  STORMO_ASSIGN_OR_RETURN(auto workers,
                          strads::Workers::make(world, a.virtual_workers, program.worker));
  std::vector<comm::Fact> facts;
  if (world.size() > 1) facts = program.facts();
  program.worker = nullptr;  // both hold the data
  program.facts = nullptr;
  STORMO_ASSIGN_OR_RETURN(
      auto rounds, strads::begin_rounds(std::move(workers), program.schedule, program.conflicts,
                                        program.loop, virtual_cluster(a)));
  return ReadyProgram{std::move(program), std::move(rounds), std::move(facts)};
}

/// All that can be refused before the first round, by all ranks together.
Result<ReadyProgram> agree_and_make_ready(comm::Communicator& world, const StradsArguments& a,
                                          const StradsMaker& maker) {
  // no rank takes memory before all have looked how much there is
  std::vector<comm::Fact> options = a.counting.facts();
  options.insert(options.begin(), {"program", maker.name});
  STORMO_RETURN_IF_ERROR(
      comm::check_agreement(world, std::move(options), maker.check_memory(world.local_size())));
  Result<ReadyProgram> ready = make_ready(world, a, maker);
  STORMO_RETURN_IF_ERROR(comm::check_agreement(
      world, ready.ok() ? std::move(ready->facts) : std::vector<comm::Fact>(), ready.status()));
  return ready;
}

Result<bool> run(ReadyProgram ready, const StradsArguments& a, bool speaks) {
  const StradsProgram& program = ready.program;
  const int workers = ready.rounds.workers().count();
  if (speaks && !a.json) {
    fmt::print("{}; {} worker{}\n\n", program.heading, workers, workers == 1 ? "" : "s");
  }
  strads::BlockValues all;
  const StradsEnd end{.values_hash = [&]() -> Result<std::uint64_t> {
    STORMO_ASSIGN_OR_RETURN(all, ready.rounds.workers().values());
    return strads::hash_of(all.common, strads::hash_of(all.rows));
  }};
  STORMO_ASSIGN_OR_RETURN(const bool converges,
                          run_and_report(ready.rounds, program.loop, {}, end, a.json, speaks));
  if (speaks && converges && !a.out.empty()) STORMO_RETURN_IF_ERROR(program.write(all));
  return converges;
}

int run_as_rank(const transport::Rendezvous& place, const StradsArguments& a,
                const StradsMaker& maker) {
  const auto world = join_world("stormo", place);
  if (!world.ok()) return fail_strads(maker.name, world.status());
  comm::Communicator& group = **world;
  Result<ReadyProgram> ready = agree_and_make_ready(group, a, maker);
  if (!ready.ok()) {
    // all ranks know what all of them refuse; the logs of other hosts may be elsewhere
    const bool speaks_for_host = place.source != "stormo" && group.local_rank() == 0;
    const bool speaks = group.rank() == 0 || speaks_for_host || !group.status().ok();
    if (speaks) (void)fail_strads(maker.name, ready.status());
    // a launcher ends all ranks as soon as one has ended: not before this is said
    (void)group.finalize(Deadline::never());
    return exit_code_of_run(ready.status());
  }
  const Result<bool> converges = run(std::move(*ready), a, group.rank() == 0);
  if (!converges.ok()) {
    group.fail(converges.status());  // else the others learn only that this rank has left
    return fail_strads(maker.name, converges.status());
  }
  const Status left = group.finalize(Deadline::never());
  if (!left.ok()) return fail_strads(maker.name, left);
  return *converges ? kExitOk : kExitFailed;
}

}  // namespace

int run_program(const StradsArguments& a, const StradsMaker& maker, const Invocation& invocation) {
  const bool simulates = a.virtual_workers.has_value();
  const auto place = simulates ? Result(transport::Rendezvous()) : find_place("stormo", a.launch);
  if (!place.ok()) return fail_strads(maker.name, place.status());
  const bool is_rank = place->source != "none";
  if (a.dry_run && place->rank != 0) return kExitOk;  // the first rank says what the job would do
  Wrong wrong;
  maker.check(wrong);
  if (!is_rank || a.dry_run) {  // ranks look at the memory of their host together
    const int here = is_rank ? place->local_size : ranks_here(a.launch);
    const Status enough = maker.check_memory(simulates ? 1 : here);
    if (!enough.ok()) wrong.push_back(enough.message());
  }
  static_cast<void>(to_launch_options(a.launch, wrong));
  if (!wrong.empty()) {
    return fail_strads(maker.name, invalid_argument(fmt::format("{}", fmt::join(wrong, "\n"))));
  }
  if (a.dry_run) return dry_run(a, maker, is_rank ? place->size : workers_of(a, wrong));
  if (is_rank || simulates || !a.launch.wants_launch()) return run_as_rank(*place, a, maker);
  return launch_copies(a.launch, invocation, "strads");
}

}  // namespace stormo::cli
