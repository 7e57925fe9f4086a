#pragma once

#include <cstdint>

namespace stormo::membership {

/// No two callers get the same one.
std::uint64_t random_id();

}  // namespace stormo::membership
