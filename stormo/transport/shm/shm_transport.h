#pragma once

#include <memory>

#include <stormo/transport/health.h>
#include <stormo/transport/shm/host_region.h>
#include <stormo/transport/transport.h>

namespace stormo::transport {

/// Messages between the ranks of a host through the rings of the host region: one copy in, one out.
/// Ranks are those of the region; `cores` is what they may use together.
std::unique_ptr<Transport> make_shm_transport(int rank, std::shared_ptr<HostRegion> region,
                                              int cores, std::shared_ptr<Health> health);

}  // namespace stormo::transport
