#pragma once

#include <string>

namespace stormo::cli {
/// Several lines: version, protocol, git hash, compiler, build type and libraries.
std::string version_text();
}  // namespace stormo::cli
