#pragma once

#include <stormo/codec/low_rank.h>
#include <stormo/plan/model/model_shape.h>

namespace stormo::plan {

/// The gradient of a parameter, as codecs with factors see it.
inline codec::MatrixShape matrix_of(const ParameterShape& p) {
  if (p.rows == 0) return {.rows = 1, .columns = p.elements};
  return {.rows = p.rows, .columns = p.elements / p.rows};
}

}  // namespace stormo::plan
