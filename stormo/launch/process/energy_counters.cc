#include <stormo/launch/process/energy_counters.h>

#include <algorithm>
#include <optional>
#include <system_error>

#include <stormo/base/file.h>
#include <stormo/base/text.h>

namespace stormo::launch {
namespace {

namespace fs = std::filesystem;

/// Packages are "intel-rapl:0", also of AMD; what is in one is "intel-rapl:0:1". Others count the
/// same a second time (intel-rapl-mmio), or more than the host (psys).
constexpr std::string_view kZones = "intel-rapl:";

std::optional<std::uint64_t> read_number(const fs::path& file) {
  return number_in<std::uint64_t>(first_line(file));
}

}  // namespace

EnergyCounters::EnergyCounters(const fs::path& folder) {
  std::error_code failed;
  std::vector<fs::path> zones;
  for (fs::directory_iterator it(folder, failed), end; !failed && it != end; it.increment(failed))
    if (it->path().filename().string().starts_with(kZones)) zones.push_back(it->path());
  std::sort(zones.begin(), zones.end());
  if (zones.empty()) {
    problem_ = "this machine shows no energy counters in " + folder.string() +
               ", as most virtual machines";
    return;
  }
  for (const fs::path& zone : zones) {
    const std::string name = first_line(zone / "name");
    if (name.starts_with("package")) open(zone, "package");
    if (name == "dram") open(zone, "dram");
  }
  if (counters_.empty())
    problem_ = "only root may read " + (zones.front() / "energy_uj").string() +
               "; to let this user: chmod a+r (as root)";
}

void EnergyCounters::open(const fs::path& zone, const std::string& source) {
  Counter c{.file = zone / "energy_uj", .source = source};
  const auto now = read_number(c.file);
  if (!now) return;
  c.last = *now;
  c.range = read_number(zone / "max_energy_range_uj").value_or(0);
  counters_.push_back(std::move(c));
}

std::map<std::string, double> EnergyCounters::joules() {
  std::map<std::string, double> out;
  for (Counter& c : counters_) {
    const std::uint64_t now = read_number(c.file).value_or(c.last);
    // from the largest value it goes on with 0
    const bool began_again = now < c.last;
    c.used += static_cast<double>(began_again ? now + (c.range - std::min(c.range, c.last))
                                              : now - c.last);
    c.last = now;
    out[c.source] += c.used * 1e-6;
  }
  return out;
}

}  // namespace stormo::launch
