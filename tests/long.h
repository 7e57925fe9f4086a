#pragma once

#include <cstdlib>

namespace stormo {

/// Whether sweeps take all of their cases: STORMO_LONG_TESTS=1, which ./check --full sets.
/// Otherwise they take those that differ most.
inline bool is_long_form() { return std::getenv("STORMO_LONG_TESTS") != nullptr; }

}  // namespace stormo
