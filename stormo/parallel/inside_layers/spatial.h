#pragma once

#include <stormo/parallel/pass.h>

namespace stormo::parallel {

/// Spatial cut: `rows` x `columns` ranks of new axes plan::kRowsAxis and plan::kColumnsAxis load
/// the same images, and each computes its share of the rows and columns of every map. Where a
/// convolution or pooling reads places of other ranks, these send them (plan::Window). All have the
/// whole model, and average their gradients. The model states what its segments read and add up
/// (SegmentShape::windows, norms, spatial_all_reduce). An axis of one rank is left out. Apply it
/// before mirrored().
///
/// kInvalidArgument, with everything that is wrong, for fewer than two ranks, a model that cannot
/// be cut so, and maps with fewer rows or columns than ranks. N. Dryden et al., "Improving
/// strong-scaling of CNN training by exploiting finer-grained parallelism", IPDPS 2019.
Pass spatial(int rows, int columns);

}  // namespace stormo::parallel
