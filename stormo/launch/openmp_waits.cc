#include <stormo/launch/openmp_waits.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>
#include <utility>

#include <stormo/launch/environment.h>

namespace stormo::launch {
namespace {

/// libgomp's default of 300,000 would be overridden by the policy. One more tells it from a user's.
constexpr const char* kSpins = "300001";

constexpr std::array<std::pair<const char*, const char*>, 3> kOwn{{
    {"GOMP_SPINCOUNT", kSpins},
    {"OMP_WAIT_POLICY",
     "active"},  // for libgomp: 1,000 spins where it has too many threads, not 100
    {"KMP_BLOCKTIME",
     "200"},  // for Intel's library: its default of 200 ms, not the policy's infinity
}};

}  // namespace

bool openmp_waits_are_given(const std::vector<std::string>& environment) {
  bool given = false;
  bool own = false;
  for (const auto& [name, value] : kOwn) {
    const std::string start = std::string(name) + "=";
    for (const std::string& e : environment) {
      if (!e.starts_with(start)) continue;
      given = true;
      own = own || e == start + kSpins;
    }
  }
  return given && !own;
}

void set_openmp_waits() {
  const std::vector<std::string> environment = own_environment();
  if (openmp_waits_are_given(environment)) return;
  for (const auto& [name, value] : kOwn) ::setenv(name, value, /*overwrite=*/1);
}

}  // namespace stormo::launch
