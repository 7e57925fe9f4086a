#pragma once

#include <string>
#include <utility>

#include <stormo/base/status.h>

namespace stormo::plan {

/// The answer to a plan that must not run.
inline Status bad(std::string message) { return Status(Code::kBadPlan, std::move(message)); }

}  // namespace stormo::plan
