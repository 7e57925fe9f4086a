#pragma once

#include <stormo/parallel/pass.h>

namespace stormo::parallel {

/// Data parallelism over `hosts` hosts of `local` ranks each, with one copy of the parameters and
/// of the optimizer's state per host: each rank of a host owns and updates a slice of them.
Pass host_shared(int hosts, int local);

}  // namespace stormo::parallel
