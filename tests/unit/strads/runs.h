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
RoundsRun virtual_run(const MakeProgram<Program>& make, protocol::Scheduler scheduler,
                      int workers = 1, protocol::VirtualWorkers cluster = {}) {
  std::vector<std::unique_ptr<BlockProgram>> programs;
  for (int w = 0; w < workers; ++w) programs.push_back(make(w, workers));
  return {Workers(std::move(programs)), std::move(scheduler), std::move(cluster)};
}

template <class Program>
Program& worker_of(const RoundsRun& run, int worker) {
  return dynamic_cast<Program&>(*run.workers().here()[static_cast<std::size_t>(worker)]);
}

/// Ranks are threads. `look` is called on each of them at the end.
template <class Program>
void run_ranks(const MakeProgram<Program>& make, const protocol::Scheduler& scheduler, int workers,
               std::int64_t rounds,
               const std::function<void(const Program&, const RoundsRun&)>& look) {
  auto group = comm::make_inproc_group(workers).take_or_throw();
  std::vector<std::thread> threads;
  for (auto& world : group) {
    threads.emplace_back([&make, &scheduler, &look, rounds, world = world.get()] {
      RoundsRun run(Workers(*world, make(world->rank(), world->size())), scheduler);
      throw_if_error(run.go_on(rounds));
      look(worker_of<Program>(run, 0), run);
      throw_if_error(world->finalize(Deadline::never()));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace stormo::strads
