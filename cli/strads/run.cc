#include <cli/strads/run.h>

#include <fmt/format.h>

#include <numeric>
#include <utility>

#include <cli/commands.h>
#include <cli/engine.h>
#include <cli/strads/agreement.h>
#include <stormo/comm/communicator.h>
#include <stormo/strads/run.h>

namespace stormo::cli {
namespace {

using strads::BlockProgram;

/// Runs a program whose workers are ready. `values` are those of all workers, where the loop
/// speaks; a collective.
Result<bool> run(const StradsProgram& program, strads::RoundsRun& rounds, StradsLoop loop,
                 const std::function<Result<StradsValues>()>& values) {
  StradsValues all;
  loop.values_hash = [&]() -> Result<std::uint64_t> {
    STORMO_ASSIGN_OR_RETURN(all, values());
    return hash_of(all.common, hash_of(all.rows));
  };
  if (loop.speaks && !loop.json) {
    fmt::print("{}; {} worker{}\n\n", program.heading(), loop.workers,
               loop.workers == 1 ? "" : "s");
  }
  STORMO_ASSIGN_OR_RETURN(const bool converges, run_strads_loop(rounds, loop));
  if (loop.speaks && converges) STORMO_RETURN_IF_ERROR(program.write(all));
  return converges;
}

/// On rank 0, the values of all ranks; a collective.
Result<StradsValues> gather(comm::Communicator& world, StradsValues mine) {
  std::int64_t count = std::ssize(mine.rows);
  std::vector<std::int64_t> counts(static_cast<std::size_t>(world.size()));
  STORMO_RETURN_IF_ERROR(world.all_gather({&count, 1, DType::kInt64}, counts));
  const auto sum = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  StradsValues all{.rows = {}, .common = std::move(mine.common)};
  if (world.rank() == 0) all.rows.resize(static_cast<std::size_t>(sum));
  STORMO_RETURN_IF_ERROR(world.gather(mine.rows, all.rows, 0, counts));
  return all;
}

/// A program and the worker that this rank is.
struct RankPart {
  std::unique_ptr<StradsProgram> program;
  protocol::Scheduler scheduler;
  std::unique_ptr<BlockProgram> worker;
  std::string facts;  // of the data
};

Result<RankPart> make_part(const comm::Communicator& world, const StradsMaker& maker) {
  STORMO_ASSIGN_OR_RETURN(auto program, maker.make(world.local_size()));
  STORMO_ASSIGN_OR_RETURN(protocol::Scheduler scheduler, program->scheduler(world.size()));
  STORMO_ASSIGN_OR_RETURN(auto worker, program->worker(world.rank(), world.size()));
  std::string facts = world.size() > 1 ? program->facts() : "";
  program->free_data();
  return RankPart{std::move(program), std::move(scheduler), std::move(worker), std::move(facts)};
}

/// All that can be refused before the first round, by all ranks together.
Result<RankPart> agreed_part(comm::Communicator& world, const StradsMaker& maker) {
  // no rank takes memory before all have looked how much there is
  const Status enough = maker.check_memory(world.local_size());
  STORMO_RETURN_IF_ERROR(
      agree_on(world, enough.ok() ? Result<std::string>(maker.options) : enough));
  Result<RankPart> part = make_part(world, maker);
  STORMO_RETURN_IF_ERROR(
      agree_on(world, part.ok() ? Result<std::string>(part->facts) : part.status()));
  return part;
}

Result<bool> run_part(comm::Communicator& world, const StradsArguments& a, RankPart part) {
  strads::RankRounds rounds(world, *part.worker, std::move(part.scheduler));
  StradsLoop loop = part.program->loop();
  loop.workers = world.size();
  loop.json = a.json;
  loop.speaks = world.rank() == 0;
  return run(*part.program, rounds, std::move(loop),
             [&] { return gather(world, part.program->values(*part.worker)); });
}

Result<bool> simulate(const StradsArguments& a, const StradsMaker& maker) {
  const int workers = *a.virtual_workers;
  STORMO_ASSIGN_OR_RETURN(const auto program, maker.make(1));
  STORMO_ASSIGN_OR_RETURN(protocol::Scheduler scheduler, program->scheduler(workers));
  std::vector<std::unique_ptr<BlockProgram>> programs;
  for (int w = 0; w < workers; ++w) {
    STORMO_ASSIGN_OR_RETURN(auto worker, program->worker(w, workers));
    programs.push_back(std::move(worker));
  }
  program->free_data();
  strads::VirtualRoundsRun rounds(std::move(programs), std::move(scheduler), virtual_cluster(a));
  StradsLoop loop = program->loop();
  loop.workers = workers;
  loop.json = a.json;
  loop.simulated = &rounds;
  return run(*program, rounds, std::move(loop), [&]() -> Result<StradsValues> {
    StradsValues all = program->values(rounds.program(0));
    for (int w = 1; w < workers; ++w) {
      const std::vector<double> rows = program->values(rounds.program(w)).rows;
      all.rows.insert(all.rows.end(), rows.begin(), rows.end());
    }
    return all;
  });
}

int exit_code_of(const Status& status) {
  const bool usage = status.code() == Code::kInvalidArgument || status.code() == Code::kRefused;
  return usage ? kExitUsage : kExitFailed;
}

/// All ranks know what all of them refuse; the logs of other hosts may be elsewhere.
int refuse(const transport::Rendezvous& place, comm::Communicator& world, const char* name,
           const Status& status) {
  const bool speaks_for_host = place.source != "stormo" && world.local_rank() == 0;
  if (world.rank() == 0 || speaks_for_host || !world.status().ok()) (void)fail_strads(name, status);
  // a launcher ends all ranks as soon as one has ended: not before this is said
  (void)world.finalize(Deadline::never());
  return exit_code_of(status);
}

}  // namespace

int fail_strads(const char* name, const Status& status) {
  fmt::print(stderr, "stormo strads {}: {}\n", name, status.message());
  return exit_code_of(status);
}

int run_virtual(const StradsArguments& a, const StradsMaker& maker) {
  const Result<bool> converges = simulate(a, maker);
  if (!converges.ok()) return fail_strads(maker.name, converges.status());
  return *converges ? kExitOk : kExitFailed;
}

int run_as_rank(const transport::Rendezvous& place, const StradsArguments& a,
                const StradsMaker& maker) {
  const auto world = join_world("stormo", place);
  if (!world.ok()) return fail_strads(maker.name, world.status());
  Result<RankPart> part = agreed_part(**world, maker);
  if (!part.ok()) return refuse(place, **world, maker.name, part.status());
  const Result<bool> converges = run_part(**world, a, std::move(*part));
  if (!converges.ok()) {
    (*world)->fail(converges.status());  // else the others learn only that this rank has left
    return fail_strads(maker.name, converges.status());
  }
  const Status left = (*world)->finalize(Deadline::never());
  if (!left.ok()) return fail_strads(maker.name, left);
  return *converges ? kExitOk : kExitFailed;
}

}  // namespace stormo::cli
