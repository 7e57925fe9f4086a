#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include <stormo/strads/run.h>

namespace stormo::strads {

template <class Program>
using MakeProgram = std::function<std::unique_ptr<Program>(int worker, int workers)>;

/// In virtual time; the programs stay in the run.
template <class Program>
VirtualRoundsRun virtual_run(const MakeProgram<Program>& make, protocol::Scheduler scheduler,
                             protocol::VirtualWorkers cluster = {}) {
  std::vector<std::unique_ptr<BlockProgram>> programs;
  const int workers = scheduler.options().workers;
  for (int w = 0; w < workers; ++w) programs.push_back(make(w, workers));
  return {std::move(programs), std::move(scheduler), std::move(cluster)};
}

template <class Program>
Program& worker_of(VirtualRoundsRun& run, int worker) {
  return dynamic_cast<Program&>(run.program(worker));
}

/// Ranks are threads. `look` is called on each of them at the end.
template <class Program>
void run_ranks(const MakeProgram<Program>& make, const protocol::Scheduler& scheduler,
               std::int64_t rounds,
               const std::function<void(const Program&, const RankRounds&)>& look) {
  auto group = comm::make_inproc_group(scheduler.options().workers).take_or_throw();
  std::vector<std::thread> threads;
  for (auto& world : group) {
    threads.emplace_back([&make, &scheduler, &look, rounds, world = world.get()] {
      const auto program = make(world->rank(), world->size());
      RankRounds run(*world, *program, scheduler);
      throw_if_error(run.go_on(rounds));
      look(*program, run);
      throw_if_error(world->finalize(Deadline::never()));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace stormo::strads
