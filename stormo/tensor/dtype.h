#pragma once

#include <c10/core/ScalarType.h>

#include <stormo/base/dtype.h>
#include <stormo/base/status.h>

namespace stormo::tensor {

/// The element type as ranks exchange it; kInvalidArgument lists the supported ones otherwise.
Result<DType> dtype_of(c10::ScalarType type);

/// libtorch's name for `type`.
c10::ScalarType scalar_type_of(DType type);

}  // namespace stormo::tensor
