#pragma once

#include <c10/core/ScalarType.h>

#include <stormo/base/dtype.h>
#include <stormo/base/status.h>

namespace stormo::tensor {

/// The DType of a libtorch type; for others kInvalidArgument lists the supported types.
Result<DType> dtype_of(c10::ScalarType type);

/// The libtorch type of `type`.
c10::ScalarType scalar_type_of(DType type);

}  // namespace stormo::tensor
