// Shared memory inside a host: threads over one mapping, and ranks that met through a HostListener,
// each with a mapping of its own as processes have.
#include <stormo/transport/inproc/inproc.h>
#include <stormo/transport/shm/host_exchange.h>
#include <stormo/transport/shm/shm_transport.h>

#include "tests/conformance/transport_conformance.h"

namespace stormo::transport {
namespace {

Fabric make_inproc(int n) {
  auto ranks = make_inproc_fabric(n);
  EXPECT_TRUE(ranks.ok()) << ranks.status().to_string();
  Fabric fabric;
  for (InprocRank& r : *ranks) fabric.push_back(std::move(r.transport));
  return fabric;
}

Fabric make_shm(int n) {
  auto listener = HostListener::open();
  EXPECT_TRUE(listener.ok()) << listener.status().to_string();
  const auto health = std::make_shared<Health>();
  Fabric fabric(static_cast<std::size_t>(n));
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r) {
    threads.emplace_back([&, r] {
      auto arena = Arena::create({.capacity_bytes = 1 << 20});
      ASSERT_TRUE(arena.ok()) << arena.status().to_string();
      const Deadline by = Deadline::after(std::chrono::seconds(20));
      auto parts = r == 0 ? (*listener)->host(n, **arena, by)
                          : join_host((*listener)->ticket(), r, n, **arena, by);
      ASSERT_TRUE(parts.ok()) << parts.status().to_string();
      fabric[static_cast<std::size_t>(r)] =
          make_shm_transport(r, parts->region, parts->cores, health);
    });
  }
  for (std::thread& t : threads) t.join();
  return fabric;
}

INSTANTIATE_TEST_SUITE_P(Host, TransportConformance,
                         ::testing::Values(FabricFactory{"inproc", make_inproc},
                                           FabricFactory{"shm", make_shm}),
                         fabric_name);

}  // namespace
}  // namespace stormo::transport
