#pragma once

#include <cstdio>

#include <stormo/comm/communicator.h>
#include <stormo/launch/environment.h>

namespace stormo::testing {

/// main() of a program that a launcher starts as a rank: joins the job and does body(world). Exit
/// codes: 0, 1 when something failed, which is said on standard error, 2 when this is no rank.
template <class F>
int run_as_rank(const F& body) {
  const auto place = launch::read_environment(launch::process_environment());
  if (!place.ok()) return 2;
  auto world = comm::join(*place);
  const Status outcome = world.ok() ? body(**world) : world.status();
  if (!outcome.ok()) std::fprintf(stderr, "%s\n", outcome.message().c_str());
  return outcome.ok() ? 0 : 1;
}

}  // namespace stormo::testing
