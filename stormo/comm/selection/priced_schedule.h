#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include <stormo/analysis/schedule/messages.h>
#include <stormo/analysis/step/step_cost.h>
#include <stormo/base/clock.h>
#include <stormo/plan/schedule.h>
#include <stormo/plan/topology.h>

namespace stormo::comm {

/// What one schedule moves and takes with buffers of any size. Keeps what it has computed.
class PricedSchedule {
 public:
  PricedSchedule(const plan::Schedule& s, plan::Topology topology);

  /// By rank. O(messages) for a size of another division into chunks, else O(ranks).
  std::vector<analysis::Traffic> traffic(std::int64_t elements, std::int64_t element_bytes);
  /// Until the last rank is done, if all start together. Plays the schedule for a new size; a large
  /// one with equal chunks only at a few sizes, with at most 3 ns of difference between them.
  Duration time(std::int64_t bytes);
  std::int64_t plays() const { return plays_; }

 private:
  const std::vector<analysis::Traffic>& elements_sent(std::int64_t elements);
  Duration played(std::int64_t bytes);
  Duration on_the_line(std::int64_t chunk_bytes);

  plan::Topology topology_;
  analysis::Messages messages_;
  bool large_ = false;
  std::map<std::int64_t, std::vector<analysis::Traffic>> sent_;  // by elements: elements
  std::map<std::int64_t, Duration> times_;                       // by bytes
  std::int64_t plays_ = 0;
};

}  // namespace stormo::comm
