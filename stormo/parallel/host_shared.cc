// Data parallelism with one copy of the model per host.
//
// Idea: ranks that share memory need no replica each. Every rank of a host owns a part of the
// parameters: it sums that part of the host's gradients, averages it with the owners of the same
// part on other hosts, and updates it where all see it. Inside a host the reduce-scatter is a read
// of the others' gradients and the all-gather a barrier. Cost: docs/algorithms.md. Papers: S.
// Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC
// 2020, for sharded updates; Y. Zhao et al., "PyTorch FSDP", VLDB 2023, for shards inside a host
// with replicas across.
#include <stormo/parallel/host_shared.h>

#include <string>

namespace stormo::parallel {
namespace {

constexpr const char* kHosts = "dp";
constexpr const char* kLocal = "host";

Result<plan::StepPlan> share(const plan::StepPlan& in, int hosts, int local) {
  if (hosts < 1 || local < 1) {
    return invalid_argument("host_shared: " + std::to_string(hosts) + " hosts of " +
                            std::to_string(local) + " ranks; give at least 1");
  }
  if (in.mesh.find(kHosts) >= 0 || in.mesh.find(kLocal) >= 0) {
    return Status(Code::kBadPlan,
                  "host_shared: the mesh already has an axis 'dp' or 'host'; apply it once, alone");
  }
  plan::StepPlan out = in;
  out.strategy += "+host_shared";
  if (hosts > 1) out.mesh.axes.push_back({kHosts, hosts});
  out.mesh.axes.push_back({kLocal, local});
  out.actions.clear();
  for (const plan::Action& a : in.actions) {
    out.actions.push_back(a);
    if (a.kind == plan::ActionKind::kBackward) {
      out.actions.push_back({plan::ActionKind::kReduceScatter, a.first, a.last, kLocal});
      if (hosts > 1) out.actions.push_back({plan::ActionKind::kAllReduce, a.first, a.last, kHosts});
    }
    if (a.kind == plan::ActionKind::kUpdate) {
      out.actions.push_back({plan::ActionKind::kAllGather, a.first, a.last, kLocal});
    }
  }
  return out;
}

}  // namespace

Pass host_shared(int hosts, int local) {
  return [=](const plan::StepPlan& in) { return share(in, hosts, local); };
}

}  // namespace stormo::parallel
