#pragma once

#include <functional>

#include <stormo/comm/communicator.h>

namespace stormo::cli {

/// The ranks make turns for so long; returns how many all of them together make per second. A
/// collective. Who makes none gives no `turn`.
Result<double> turns_per_second(comm::Communicator& world, double seconds,
                                const std::function<Status()>& turn);

}  // namespace stormo::cli
