#pragma once

#include <stormo/base/dtype.h>
#include <stormo/plan/model/model_shape.h>

// What decides which messages the computation of a segment contains, and their types.
namespace stormo::analysis {

/// The first segment that reads a trainable parameter: no gradient goes further. O(parameters).
int first_trained_segment(const plan::ModelShape& model);

/// Of the parameters, and of activations unless StepSizes::computes_in says otherwise. Of a
/// verified model, which has some.
DType parameter_type(const plan::ModelShape& model);

}  // namespace stormo::analysis
