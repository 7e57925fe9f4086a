#pragma once

#include <stormo/base/status.h>

namespace stormo::comm {

/// The exception being handled: an Error's own status, else kException with its type and text.
Status status_of_exception();

/// The status that `body` returns. An exception, which the user's code may throw, becomes a status.
template <class F>
Status outcome_of(F&& body) {
  try {
    return body();
  } catch (...) {
    return status_of_exception();
  }
}

}  // namespace stormo::comm
