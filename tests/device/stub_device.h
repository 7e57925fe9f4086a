#pragma once

#include <cstdint>

#include <torch/types.h>

// A device of libtorch for tests: the host may not touch its memory.
namespace stormo::test {

/// Device `index` of 8. Its tensors have addresses at which the host faults; operations on them are
/// those of the CPU, to the bit.
///
/// It has a clock of its own, which only runs while an operation does: each takes kStubOperationMs.
/// Events of libtorch measure this time.
torch::Device stub_device(int index);
inline constexpr std::int64_t kStubOperationMs = 1;

/// How often the host has copied values of such devices to its own memory, by any thread.
std::int64_t stub_reads();
/// How many operations a device has executed.
std::int64_t stub_operations(int index);

/// While it lives, copying to that device fails, or to it and from it.
class LostStubDevice {
 public:
  explicit LostStubDevice(int index, bool also_reads = false);
  ~LostStubDevice();
  LostStubDevice(const LostStubDevice&) = delete;
};

}  // namespace stormo::test
