#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace stormo::launch {

/// Energy that this host has used since the object was made, by the counters of its processors
/// (RAPL). All programs of the host are in it.
class EnergyCounters {
 public:
  explicit EnergyCounters(const std::filesystem::path& folder = "/sys/class/powercap");

  /// Why nothing can be measured; empty: it can.
  const std::string& problem() const { return problem_; }

  /// Joules by source: "package", and "dram" where it has counters of its own. Counters begin again
  /// after some minutes under load: call it more often than that. One thread at a time.
  std::map<std::string, double> joules();

 private:
  struct Counter {
    std::filesystem::path file;
    std::string source;
    std::uint64_t range = 0;  ///< of its values, in microjoules
    std::uint64_t last = 0;
    double used = 0;  ///< microjoules
  };
  void open(const std::filesystem::path& zone, const std::string& source);

  std::string problem_;
  std::vector<Counter> counters_;
};

}  // namespace stormo::launch
