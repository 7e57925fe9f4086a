#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <stormo/strads/round_plan.h>

namespace stormo::strads {

template <class Program>
using MakeProgram = std::function<std::unique_ptr<Program>(int worker, int workers)>;

inline plan::StepPlan plan_of(const Workers& workers, const protocol::Scheduler& scheduler) {
  return round_plan(workers.first().variables(), workers.count(), scheduler.options(),
                    {.every = 10})
      .take_or_throw();
}

inline RoundsRun made_run(Workers workers, protocol::Scheduler scheduler,
                          std::optional<protocol::VirtualWorkers> cluster = {}) {
  plan::StepPlan plan = plan_of(workers, scheduler);
  return RoundsRun::make(std::move(workers), std::move(scheduler), std::move(plan),
                         std::move(cluster))
      .take_or_throw();
}

/// In virtual time; the programs stay in the run.
template <class Program>
RoundsRun virtual_run(const MakeProgram<Program>& make, protocol::Scheduler scheduler,
                      int workers = 1, protocol::VirtualWorkers cluster = {}) {
  std::vector<std::unique_ptr<BlockProgram>> programs;
  for (int w = 0; w < workers; ++w) programs.push_back(make(w, workers));
  return made_run(Workers(std::move(programs)), std::move(scheduler), std::move(cluster));
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
      RoundsRun run = made_run(Workers(*world, make(world->rank(), world->size())), scheduler);
      throw_if_error(run.go_on(rounds));
      look(worker_of<Program>(run, 0), run);
      throw_if_error(world->finalize(Deadline::never()));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// What a plan says of `rounds` rounds: each step does the actions of the batches that are there,
/// and the steps behind the last round have none of their own.
inline std::vector<std::string> said_by(const plan::StepPlan& plan, std::int64_t rounds) {
  std::vector<std::string> out;
  for (std::int64_t step = 0; step < rounds + longest_delay(plan); ++step) {
    for (const plan::Action& a : plan.actions) {
      const std::int64_t batch = step - a.delay;
      if (!row_of(a.kind).all_batches && batch >= 0 && batch < rounds) out.push_back(to_text(a));
    }
  }
  for (const plan::Action& a : plan.actions) {
    if (row_of(a.kind).all_batches) out.push_back(to_text(a));
  }
  return out;
}

}  // namespace stormo::strads
