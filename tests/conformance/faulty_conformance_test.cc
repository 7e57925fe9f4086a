#include "tests/conformance/faulty.h"
#include "tests/conformance/tcp_fabric.h"
#include "tests/conformance/transport_conformance.h"

namespace stormo::transport {
namespace {

Fabric make_faulty_fabric(int n, const FaultPlan& plan) {
  Fabric fabric;
  for (auto& inner : make_tcp_fabric(n, "127.0.0.1", false)) {
    fabric.push_back(make_faulty(std::move(inner), plan));
  }
  return fabric;
}

FaultPlan delays() {
  FaultPlan plan;
  plan.seed = 5;
  plan.delay_probability = 0.2;
  plan.max_delay = std::chrono::microseconds(500);
  return plan;
}

INSTANTIATE_TEST_SUITE_P(
    Faulty, TransportConformance,
    ::testing::Values(FabricFactory{"no_faults", [](int n) { return make_faulty_fabric(n, {}); }},
                      FabricFactory{"delays",
                                    [](int n) { return make_faulty_fabric(n, delays()); }}),
    fabric_name);

}  // namespace
}  // namespace stormo::transport
