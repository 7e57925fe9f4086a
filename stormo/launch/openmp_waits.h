#pragma once

#include <string>
#include <vector>

namespace stormo::launch {

/// How long threads of libgomp spin before they sleep when they wait for each other, as
/// "NAME=value": 0.1 to 0.3 ms, a tenth of its default. Where other processes use the cores,
/// threads that spin take the cores from those that they wait for, and with the default a step
/// takes 2 to 4 times as long. On a quiet machine the difference is below 3 %.
inline constexpr const char* kOpenMpSpins = "GOMP_SPINCOUNT=30000";

/// Whether an environment ("NAME=value") says how threads of OpenMP wait.
bool openmp_waits_are_given(const std::vector<std::string>& environment);

/// Sets kOpenMpSpins for programs that this process becomes or starts; libgomp reads it when it is
/// loaded. Changes nothing where the user has said how they wait. Call it before there are other
/// threads.
void set_openmp_waits();

}  // namespace stormo::launch
