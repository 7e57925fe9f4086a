#pragma once

#include <stormo/parallel/pass.h>

namespace stormo::parallel {

/// Elastic averaging: every rank of the new mesh axis "dp" trains by itself, with an optimizer of
/// its own, on its part of the data. In the first of every `period` steps it exchanges with the
/// centre, which servers hold: its values and the centre move towards each other. No action is a
/// collective, so the plan has no agree. Fails with kInvalidArgument for workers < 1 or period < 1,
/// with kBadPlan when the mesh has axes already.
Pass elastic_averaging(int workers, int period);

}  // namespace stormo::parallel
