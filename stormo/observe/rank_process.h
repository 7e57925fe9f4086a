#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace stormo::observe {

/// What the host of a rank tells of its process.
struct RankProcess {
  int rank = 0;
  std::string host{};
  std::string state{};             ///< "running", "stopped"
  std::uint64_t memory_bytes = 0;  ///< in memory now, with what it shares with others
};

/// As a JSON list of objects: `rank`, `host`, `state`, `memory_bytes`.
std::string ranks_json(std::span<const RankProcess> ranks);

}  // namespace stormo::observe
