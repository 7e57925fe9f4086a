#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include <stormo/analysis/transfer/collectives.h>
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

  /// Every rank is in one of them, if it is of one of the stages (empty: all) and has this slice
  /// (negative: any). Computed once for the same arguments; O(ranks).
  const std::vector<Group>& over(const std::vector<std::string>& axes,
                                 const std::vector<int>& stages = {}, int slice = -1);

  /// Of these ranks, ascending.
  Group of(const std::vector<Rank>& ranks) const;

  bool same_host(Rank a, Rank b) const {
    return host_of_[static_cast<std::size_t>(a)] == host_of_[static_cast<std::size_t>(b)];
  }

 private:
  plan::Mesh mesh_;
  std::vector<int> host_of_;  // by rank
  using Key = std::tuple<std::vector<std::string>, std::vector<int>, int>;
  std::map<Key, std::vector<Group>> groups_;
};

/// Whether these ranks, which are of some stages, take part in a collective.
bool takes_part(const plan::Mesh& mesh, const StepGroups::Group& group, const Collective& c);

}  // namespace stormo::analysis
