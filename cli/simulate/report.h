#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <cli/plot/losses.h>
#include <stormo/base/clock.h>
#include <stormo/observe/records.h>
#include <stormo/protocol/server/shard_state.h>
#include <stormo/protocol/server/virtual_servers.h>

namespace stormo::cli {

/// What came out under one policy.
struct SimulatedPolicy {
  std::string policy;
  Duration time{};                  ///< virtual, until the last worker has ended, or diverged
  bool diverged = false;            ///< a loss was not finite, which ended the simulation
  std::string lost = {};            ///< "worker 3": whose loss ended the run; empty: nobody's
  std::uint64_t updates = 0;        ///< of a server
  std::uint64_t dropped = 0;        ///< gradients that a server did not use
  protocol::Staleness staleness;    ///< of the gradients on all servers
  std::vector<std::int64_t> steps;  ///< by worker
  double waited = 0;                ///< share of the workers' time; unknown if diverged
  std::vector<LossPoint> losses;    ///< of every gradient
  std::vector<LossPoint> means;     ///< running means of them; the last one is the train loss
  std::optional<observe::EvalRecord> score;  ///< split, loss and accuracy
  std::string weights_hash;                  ///< as of a run; empty if diverged
  double wall_s = 0;
};

/// One recipe on one virtual cluster.
struct Simulation {
  std::string name;  ///< of the recipe
  std::int64_t global_batch = 0;
  protocol::VirtualCluster cluster;
  std::vector<SimulatedPolicy> policies = {};
};

/// Lines for people: what is simulated, a table, and what can be said of times to equal loss.
void print_simulation(const Simulation& s);

/// Which policies reached the worst final loss of all first; empty where that is no news.
std::string time_to_equal_loss(const std::vector<SimulatedPolicy>& policies);

/// An SVG of the losses over virtual time, a line for each policy.
std::string svg_losses(const Simulation& s);

/// One line of JSON, without its end.
std::string policy_json(const Simulation& s, const SimulatedPolicy& p);

/// "8 workers, 500 steps of 64 samples; ..."
std::string heading(const Simulation& s);
/// "loss 0.312, test accuracy 91.20 %", or when it diverged.
std::string final_numbers(const SimulatedPolicy& p);

}  // namespace stormo::cli
