#pragma once

#include <stormo/base/status.h>

namespace stormo::train {

/// The exception being handled as a Status: an Error's own, libtorch's without its backtrace, any
/// other's type and text. Call from a catch block or a terminate handler.
Status failure_of_current_exception();

}  // namespace stormo::train
