#pragma once

#include <chrono>
#include <cstdint>

#include <stormo/base/clock.h>
#include <stormo/membership/epoch_record.h>

namespace stormo::membership::test {

inline Deadline soon() { return Deadline::after(std::chrono::seconds(30)); }

/// No two with the same hash are equal.
inline EpochRecord record(Epoch epoch, std::uint64_t hash) {
  return {
      .job = "digits",
      .epoch = epoch,
      .members = {{.identity = "a/0", .incarnation = 1, .address = "10.0.0.1:4000"},
                  {.identity = "b/0", .incarnation = 3, .address = "[fd00::2]:4000", .shares = 2}},
      .base_step = 10 * epoch,
      .state_hash = hash,
      .plan_hash = 7,
      .donors = {"b/0"}};
}

}  // namespace stormo::membership::test
