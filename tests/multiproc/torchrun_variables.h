#pragma once

#include <string>
#include <vector>

namespace stormo::testing {

/// The variables by which torchrun, and the job's rendezvous in `folder`, place a rank of a world
/// with `per_host` ranks on each host.
inline std::vector<std::string> torchrun_variables(int rank, int ranks, int per_host,
                                                   const std::string& folder) {
  const auto text = [](int number) { return std::to_string(number); };
  return {"RANK=" + text(rank),
          "WORLD_SIZE=" + text(ranks),
          "LOCAL_RANK=" + text(rank % per_host),
          "LOCAL_WORLD_SIZE=" + text(per_host),
          "GROUP_RANK=" + text(rank / per_host),
          "MASTER_ADDR=127.0.0.1",
          "MASTER_PORT=29500",
          "STORMO_RENDEZVOUS=file:" + folder + "/job",
          "STORMO_INTERFACE=lo"};
}

}  // namespace stormo::testing
