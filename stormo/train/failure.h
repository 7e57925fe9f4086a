#pragma once

#include <stormo/base/status.h>

namespace stormo::train {

/// The current exception as a Status: the status of an Error, the text of a libtorch error without
/// its backtrace, or the type and text of any other. Call from a catch block or a terminate
/// handler.
Status failure_of_current_exception();

}  // namespace stormo::train
