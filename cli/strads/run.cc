#include <cli/strads/run.h>

#include <fmt/format.h>

#include <numeric>
#include <utility>

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

}  // namespace

Result<bool> simulate(const StradsArguments& a, StradsProgram& program) {
  const int workers = *a.virtual_workers;
  STORMO_ASSIGN_OR_RETURN(protocol::Scheduler scheduler, program.scheduler(workers));
  std::vector<std::unique_ptr<BlockProgram>> programs;
  for (int w = 0; w < workers; ++w) {
    STORMO_ASSIGN_OR_RETURN(auto worker, program.worker(w, workers));
    programs.push_back(std::move(worker));
  }
  program.free_data();
  strads::VirtualRoundsRun rounds(std::move(programs), std::move(scheduler), virtual_cluster(a));
  StradsLoop loop = program.loop();
  loop.workers = workers;
  loop.json = a.json;
  loop.simulated = &rounds;
  return run(program, rounds, std::move(loop), [&]() -> Result<StradsValues> {
    StradsValues all = program.values(rounds.program(0));
    for (int w = 1; w < workers; ++w) {
      const std::vector<double> rows = program.values(rounds.program(w)).rows;
      all.rows.insert(all.rows.end(), rows.begin(), rows.end());
    }
    return all;
  });
}

Result<bool> run_as_rank(comm::Communicator& world, const StradsArguments& a,
                         StradsProgram& program) {
  STORMO_ASSIGN_OR_RETURN(protocol::Scheduler scheduler, program.scheduler(world.size()));
  STORMO_ASSIGN_OR_RETURN(const auto worker, program.worker(world.rank(), world.size()));
  program.free_data();
  strads::RankRounds rounds(world, *worker, std::move(scheduler));
  StradsLoop loop = program.loop();
  loop.workers = world.size();
  loop.json = a.json;
  loop.speaks = world.rank() == 0;
  return run(program, rounds, std::move(loop),
             [&] { return gather(world, program.values(*worker)); });
}

}  // namespace stormo::cli
