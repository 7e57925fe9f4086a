#pragma once

#include <cstdint>

namespace stormo::protocol {

// When a worker exchanges that does not do so in every step: of each `every` steps, counted from 1,
// a read comes before the first one and a push after the last one. The last step that a worker has
// to do also ends with a push; which one that is, the caller knows.

inline bool begins_period(std::int64_t step, std::int64_t every) { return (step - 1) % every == 0; }
inline bool ends_period(std::int64_t step, std::int64_t every) { return step % every == 0; }

}  // namespace stormo::protocol
