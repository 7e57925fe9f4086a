#pragma once

#include <stormo/base/clock.h>
#include <stormo/transport/memory/wait.h>

namespace stormo::mpi {

/// The time between two looks at something that only looking brings forward. At first none; then
/// the core is offered to others; then it sleeps, a small part of the time waited so far, so that
/// a long wait costs neither a core nor much delay.
class Pacing {
 public:
  explicit Pacing(const transport::WaitPolicy& policy) : policy_(policy) {}
  /// Passes the time until the next look. True when there is time to look at other things too.
  bool pause();

 private:
  const transport::WaitPolicy& policy_;
  int looks_ = 0;
  TimePoint start_{};
};

}  // namespace stormo::mpi
