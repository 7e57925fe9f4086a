#include <cli/strads/run.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include <cli/engine.h>
#include <cli/strads/agreement.h>
#include <stormo/comm/communicator.h>
#include <stormo/launch/host_spec.h>
#include <stormo/strads/data_files.h>

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
  std::string facts;  // of the data
};

/// In virtual time this process has all workers.
Result<ReadyProgram> make_ready(comm::Communicator& world, const StradsArguments& a,
                                const StradsMaker& maker) {
  STORMO_ASSIGN_OR_RETURN(StradsProgram program, maker.make(world.local_size()));
  STORMO_ASSIGN_OR_RETURN(auto scheduler,
                          protocol::Scheduler::make(program.schedule, program.conflicts));
  std::vector<std::unique_ptr<strads::BlockProgram>> here;
  const bool simulates = a.virtual_workers.has_value();
  const int count = a.virtual_workers.value_or(world.size());
  for (int w = simulates ? 0 : world.rank(); w < (simulates ? count : world.rank() + 1); ++w) {
    STORMO_ASSIGN_OR_RETURN(auto worker, program.worker(w, count));
    here.push_back(std::move(worker));
  }
  std::string facts = world.size() > 1 ? program.facts() : "";
  program.worker = nullptr;  // both hold the data
  program.facts = nullptr;
  strads::Workers workers = simulates ? strads::Workers(std::move(here))
                                      : strads::Workers(world, std::move(here.front()));
  strads::RoundsRun rounds(std::move(workers), std::move(scheduler), virtual_cluster(a));
  return ReadyProgram{std::move(program), std::move(rounds), std::move(facts)};
}

/// All that can be refused before the first round, by all ranks together.
Result<ReadyProgram> agree_and_make_ready(comm::Communicator& world, const StradsArguments& a,
                                          const StradsMaker& maker) {
  // no rank takes memory before all have looked how much there is
  const Status enough = maker.check_memory(world.local_size());
  const std::string options = fmt::format("stormo strads {}\n{}", maker.name, a.counting.text());
  STORMO_RETURN_IF_ERROR(agree_on(world, enough.ok() ? Result<std::string>(options) : enough));
  Result<ReadyProgram> ready = make_ready(world, a, maker);
  STORMO_RETURN_IF_ERROR(
      agree_on(world, ready.ok() ? Result<std::string>(ready->facts) : ready.status()));
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
  Wrong wrong;
  maker.check(wrong);
  if (!is_rank) {  // ranks look at the memory of their host together
    const Status enough = maker.check_memory(simulates ? 1 : ranks_here(a.launch));
    if (!enough.ok()) wrong.push_back(enough.message());
  }
  launch::LaunchOptions launch = to_launch_options(a.launch, wrong);
  if (!wrong.empty()) {
    return fail_strads(maker.name, invalid_argument(fmt::format("{}", fmt::join(wrong, "\n"))));
  }
  if (is_rank || simulates || !a.launch.wants_launch()) return run_as_rank(*place, a, maker);
  launch.output = launch::OutputMode::kRaw;
  return launch_copies(std::move(launch), invocation, "strads");
}

}  // namespace stormo::cli
