#pragma once

#include <optional>

#include <stormo/codec/momentum_correction.h>
#include <stormo/plan/action.h>

namespace stormo::plan {

/// In place of a builder (Action::algorithm): ranks encode the momentum of their gradients. Its
/// word is that of codec::to_string(). Nothing: the action says something else.
inline std::optional<codec::MomentumCorrection> momentum_of(const Action& a) {
  if (!row_of(a.kind).reduces) return {};
  return codec::momentum_correction_of(a.algorithm);
}

}  // namespace stormo::plan
