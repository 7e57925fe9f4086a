#include <stormo/observe/rank_process.h>

#include <nlohmann/json.hpp>

namespace stormo::observe {

std::string ranks_json(std::span<const RankProcess> ranks) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const RankProcess& r : ranks) {
    out.push_back(
        {{"rank", r.rank}, {"host", r.host}, {"state", r.state}, {"memory_bytes", r.memory_bytes}});
  }
  return out.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace stormo::observe
