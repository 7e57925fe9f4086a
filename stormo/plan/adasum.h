#pragma once

#include <stormo/plan/action.h>

namespace stormo::plan {

/// In place of a builder (Action::algorithm): the gradients of ranks are not added up, but become
/// one by Adasum, see codec::Adasum.
inline constexpr const char* kAdasum = "adasum";

inline bool combines_by_adasum(const Action& a) {
  return row_of(a.kind).reduces && a.algorithm == kAdasum;
}

}  // namespace stormo::plan
