#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <stormo/plan/model/model_shape.h>

namespace stormo::plan {

/// Layout of parameters in one buffer, of which each rank owns an equal, contiguous shard. Units:
/// elements.
struct FlatBuffer {
  std::vector<std::int64_t> offsets;  ///< by parameter; each starts at a multiple of 64 bytes
  std::int64_t elements = 0;          ///< with alignment: a multiple of 16 for each rank, above 0
};

/// Parameters of `counts` elements, of `element_bytes` bytes each, one after the other.
FlatBuffer flat_buffer(std::span<const std::int64_t> counts, std::int64_t element_bytes, int ranks);

/// Parameters that can share a buffer: they have one type, all are trainable or all frozen, and all
/// or none have sparse gradients.
struct FlatGroup {
  DType dtype = DType::kFloat32;
  bool trainable = true;
  bool sparse = false;
  std::vector<std::int64_t> counts;  ///< elements, by parameter
};

/// Parameters that are sharded together: all that a segment owns, but each parameter that several
/// stages read by itself, so that these stages cut it alike.
struct Unit {
  Range parameters;
  int segment = 0;
  bool trains = false;     ///< some are trainable
  bool elsewhere = false;  ///< of another stage
};
/// Ascending. O(parameters).
std::vector<Unit> units_of(const ModelShape& model);

/// The groups of `parameters`, in the order of their first members; without those that are
/// elsewhere.
std::vector<FlatGroup> flat_groups(const ModelShape& model, Range parameters);

}  // namespace stormo::plan
