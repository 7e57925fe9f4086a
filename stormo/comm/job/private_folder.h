#pragma once

#include <string>
#include <vector>

#include <stormo/base/status.h>

namespace stormo::comm {

/// kRefused unless the folder is no link, belongs to this user, and nobody else may enter it or
/// rename it.
Status check_private(const std::string& folder);

/// Finds or creates a folder for what the ranks of this host tell each other: the first of these
/// that only this user can enter. kRefused, with all reasons, when there is none.
Result<std::string> private_folder(const std::vector<std::string>& folders);

}  // namespace stormo::comm
