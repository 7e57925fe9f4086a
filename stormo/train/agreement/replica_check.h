#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>
#include <stormo/train/state/checkpoint.h>

namespace stormo::train {

/// Text about the cause of a difference, from the hashes of all ranks at two readings of the same
/// values.
std::string compare_looks(std::span<const std::int64_t> first,
                          std::span<const std::int64_t> second);

/// A collective. Returns the weights_hash() of the tensors of a model, parameters and buffers, if
/// names, shapes, types and bytes are equal on all ranks. Else kMismatch on every rank, naming the
/// ranks that differ from the majority and the first tensor in which they differ. The values are
/// then read a second time, to distinguish wrong values from read errors. Buffers that differ by
/// design (running statistics) must have been broadcast before. Costs one pass over the values and
/// 8 bytes per rank.
Result<std::string> check_replicas(comm::Communicator& world, const VisitTensors& tensors);

}  // namespace stormo::train
