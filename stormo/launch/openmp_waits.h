#pragma once

#include <string>
#include <vector>

namespace stormo::launch {

/// Whether an environment ("NAME=value") says how threads of OpenMP wait for each other, other than
/// set_openmp_waits() has.
bool openmp_waits_are_given(const std::vector<std::string>& environment);

/// For programs with libtorch that this process becomes or starts: how libgomp's threads wait for
/// each other. They spin as long as they do by default; and for microseconds instead of less than
/// one where there are more of them than cores, which is what a rank makes libgomp believe while
/// other processes use the cores (train/world/busy_watch.h). libgomp reads it when it is loaded.
/// Changes nothing where the user has said how they wait. Call it before there are other threads.
void set_openmp_waits();

}  // namespace stormo::launch
