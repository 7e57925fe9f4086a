#pragma once

#include <chrono>

#include <stormo/observe/metrics/run_status.h>

namespace stormo::observe::test {

inline StepRecord full_step() {
  StepRecord step{.step = 12,
                  .steps = 100,
                  .epoch = 0.5,
                  .loss = 1.25,
                  .learning_rate = 1e-5,
                  .samples_per_s = 320,
                  .eta_s = 8.5,
                  .share = {0.5, 0.25, 0.125, 0.125},
                  .rank_shares = {{0.5, 0.25, 0.125, 0.125}, {0.75, 0.25, 0, 0}},
                  .slowest = 1};
  step.samples = 384;
  step.gradient_norm = 0.75;
  step.times.add(0.002, 1);  // in the bucket of 2.5 ms
  step.times.add(0.8, 2);    // two of 0.4 s
  step.times.add(500, 1);    // longer than any bound
  step.lane_seconds = {4, 2, 1, 0.5};
  step.bytes_sent = 1'000'000;
  step.checkpoint = "run/step-00000010";
  return step;
}

/// What makes the other metrics.
inline CostRecord full_cost() {
  CostRecord cost;
  cost.wall_s = 100;
  cost.wasted_s = 25;
  cost.joules = {{"dram", 2}, {"package", 8}};
  return cost;
}

/// Tells of a run in which every metric but those of the cost has a value.
inline void tell_all(RunObserver& observer) {
  observer.on_start({.recipe = "a \"quoted\\ name\nof \xff two lines",
                     .strategy = "ddp",
                     .ranks = 2,
                     .hosts = 2,
                     .parameters = 784,
                     .steps = 100,
                     .global_batch = 32,
                     .checkpoint = "run"});
  observer.on_step(full_step());
  observer.on_eval({.split = "validation", .step = 10, .loss = 3, .accuracy = 0.25});
  observer.on_eval({.split = "validation", .step = 12, .loss = 2, .accuracy = 0.5});
  observer.on_save_failed({.step = 10, .error = "no space"});
  observer.on_slow_ranks({.step = 11,
                          .changes = {{.rank = 1, .part = "data", .ratio = 3},
                                      {.rank = 0, .part = "data", .ratio = 1.5},
                                      {.rank = 0, .part = "link", .ratio = 2, .without = 0.75}}});
  observer.on_slow_ranks({.step = 12, .changes = {{.rank = 0, .part = "data", .begins = false}}});
  observer.on_warning({.kind = "loss_grown", .step = 12, .message = "the loss has grown"});
}

}  // namespace stormo::observe::test
