#pragma once

#include <algorithm>

#include <stormo/base/clock.h>

namespace stormo::comm {

/// A part of a wait until `by`: how long it lasts at most before it is looked whether the group has
/// failed, or a peer has left.
inline Deadline slice_of(Deadline by) {
  constexpr Duration kSlice = std::chrono::milliseconds(20);
  return Deadline::at(std::min(by.when(), Deadline::after(kSlice).when()));
}

}  // namespace stormo::comm
