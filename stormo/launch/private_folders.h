#pragma once

#include <string>
#include <vector>

#include <stormo/launch/environment.h>

namespace stormo::launch {

/// Where processes of one user and host may leave files for each other, the best first: in the
/// folder of the login ($XDG_RUNTIME_DIR/stormo), in /tmp, in the user's own. Whoever writes there
/// makes the folder, and looks whose it is: comm::private_folder().
std::vector<std::string> private_folders(const EnvironmentReader& read);

}  // namespace stormo::launch
