#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include <stormo/base/ids.h>
#include <stormo/plan/mesh.h>

namespace stormo::analysis {

/// The ranks of a mesh that take part together, for any of its axes, and how they lie on hosts.
/// Ranks are numbered host by host.
class StepGroups {
 public:
  struct Group {
    std::vector<Rank> ranks;          ///< ascending
    std::vector<int> ranks_per_host;  ///< of `ranks`, in their order
  };

  /// `ranks_per_host` has as many ranks as `mesh`.
  StepGroups(plan::Mesh mesh, const std::vector<int>& ranks_per_host);

  /// Every rank is in one of them. Computed once for each set of axes; O(ranks).
  const std::vector<Group>& over(const std::vector<std::string>& axes);

 private:
  plan::Mesh mesh_;
  std::vector<int> host_of_;  // by rank
  std::map<std::vector<std::string>, std::vector<Group>> groups_;
};

}  // namespace stormo::analysis
