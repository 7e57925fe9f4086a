#pragma once

#include <cstddef>

namespace stormo {

/// An int that counts from 0 as an index of a container.
inline std::size_t at(int index) { return static_cast<std::size_t>(index); }

}  // namespace stormo
