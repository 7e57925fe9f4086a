#include <stormo/launch/openmp_waits.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include <stormo/launch/environment.h>

namespace stormo::launch {

bool openmp_waits_are_given(const std::vector<std::string>& environment) {
  return std::ranges::any_of(environment, [](std::string_view e) {
    return e.starts_with("GOMP_SPINCOUNT=") || e.starts_with("OMP_WAIT_POLICY=") ||
           e.starts_with("KMP_BLOCKTIME=");
  });
}

void set_openmp_waits() {
  if (openmp_waits_are_given(own_environment())) return;
  const std::string_view spins = kOpenMpSpins;
  const std::size_t sign = spins.find('=');
  ::setenv(std::string(spins.substr(0, sign)).c_str(), spins.data() + sign + 1, /*overwrite=*/1);
}

}  // namespace stormo::launch
