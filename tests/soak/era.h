#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <stormo/comm/communicator.h>

#include "tests/sanitized.h"

/// What every rank of a soak does, be it a thread or a process.
namespace stormo::soak {

inline constexpr int kOperationsPerEra = 40;

// with a sanitizer freed memory is kept for a while
inline constexpr long kMaxGrowthKilobytes = (kSanitized ? 400 : 64) << 10;

/// Of this process.
int open_descriptors();

/// Where each rank of a job with these hosts, all on this machine, finds the others.
std::vector<transport::Rendezvous> places(const std::vector<int>& ranks_per_host,
                                          const transport::StoreAddress& store,
                                          const transport::Secret& secret);

/// What groups keep for good grows with the largest operation of each kind: those come first, so
/// that what grows later is a leak. What is wrong; empty: nothing.
std::string run_greatest(comm::Communicator& world, std::uint64_t seed, std::int64_t max_count);

/// Some random operations, a part of them in a subgroup. Equal arguments on all ranks. What is
/// wrong; empty: nothing.
std::string run_era(comm::Communicator& world, std::uint64_t seed, std::uint64_t era,
                    std::int64_t max_count);

}  // namespace stormo::soak
