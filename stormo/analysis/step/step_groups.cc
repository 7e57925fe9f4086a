#include <stormo/analysis/step/step_groups.h>

#include <algorithm>
#include <utility>

#include <stormo/base/check.h>
#include <stormo/plan/project.h>

namespace stormo::analysis {

StepGroups::StepGroups(plan::Mesh mesh, const std::vector<int>& ranks_per_host)
    : mesh_(std::move(mesh)) {
  for (int host = 0; host < static_cast<int>(ranks_per_host.size()); ++host) {
    host_of_.insert(host_of_.end(),
                    static_cast<std::size_t>(ranks_per_host[static_cast<std::size_t>(host)]), host);
  }
  STORMO_CHECK(host_of_.size() == static_cast<std::size_t>(mesh_.size()),
               "StepGroups: the hosts have another number of ranks than the mesh");
}

const std::vector<StepGroups::Group>& StepGroups::over(const std::vector<std::string>& axes,
                                                       const std::vector<int>& stages, int slice) {
  const auto [entry, is_new] = groups_.try_emplace({axes, stages, slice});
  if (!is_new) return entry->second;
  std::map<std::vector<int>, std::size_t> by_others;  // coordinates on the other axes
  for (Rank r = 0; r < mesh_.size(); ++r) {
    if (!stages.empty() && std::ranges::count(stages, stage_of(mesh_, r)) == 0) continue;
    if (slice >= 0 && slice_of(mesh_, r).index != slice) continue;
    std::vector<int> others = mesh_.coordinates(r);
    for (std::size_t i = 0; i < others.size(); ++i) {
      if (std::ranges::count(axes, mesh_.axes[i].name) > 0) others[i] = 0;
    }
    const auto [found, first] = by_others.try_emplace(std::move(others), entry->second.size());
    if (first) entry->second.emplace_back();
    Group& group = entry->second[found->second];
    const int host = host_of_[static_cast<std::size_t>(r)];
    const bool same_host = !first && host_of_[static_cast<std::size_t>(group.ranks.back())] == host;
    if (!same_host) group.ranks_per_host.push_back(0);
    ++group.ranks_per_host.back();
    group.ranks.push_back(r);
  }
  return entry->second;
}

StepGroups::Group StepGroups::of(const std::vector<Rank>& ranks) const {
  Group out{.ranks = ranks, .ranks_per_host = {}};
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i == 0 || !same_host(ranks[i - 1], ranks[i])) out.ranks_per_host.push_back(0);
    ++out.ranks_per_host.back();
  }
  return out;
}

bool takes_part(const plan::Mesh& mesh, const StepGroups::Group& group, const Collective& c) {
  if (c.only_between_hosts && group.ranks_per_host.size() == 1) return false;
  return c.stages.empty() || std::ranges::any_of(group.ranks, [&](Rank r) {
           return std::ranges::count(c.stages, stage_of(mesh, r)) > 0;
         });
}

}  // namespace stormo::analysis
