#include <stormo/launch/private_folders.h>

#include <fmt/format.h>
#include <unistd.h>

#include <stormo/launch/network.h>

namespace stormo::launch {

// In that of the login others cannot even take the name. Hosts may share the user's own.
std::vector<std::string> private_folders(const EnvironmentReader& read) {
  std::vector<std::string> folders;
  const std::string login = read("XDG_RUNTIME_DIR").value_or("");
  if (login.starts_with('/')) folders.push_back(login + "/stormo");
  folders.push_back(fmt::format("/tmp/stormo-{}", ::geteuid()));
  const std::string home = read("HOME").value_or("");
  if (home.starts_with('/')) {
    folders.push_back(fmt::format("{}/.stormo-run-{}", home, own_host_name()));
  }
  return folders;
}

}  // namespace stormo::launch
