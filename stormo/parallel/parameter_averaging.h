#pragma once

#include <stormo/parallel/pass.h>

namespace stormo::parallel {

/// Parameter averaging (local SGD): every rank of the new mesh axis "dp" trains by itself, on its
/// part of the data. After every `period` steps parameters and optimizer state are replaced by
/// their averages, and the ranks agree on loss and stop. Fails with kInvalidArgument for ranks < 1
/// or period < 1, with kBadPlan when the mesh has axes already.
Pass parameter_averaging(int ranks, int period);

}  // namespace stormo::parallel
