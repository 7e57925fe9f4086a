#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>
#include <stormo/model/chain.h>
#include <stormo/train/parameters/parameter_store.h>
#include <stormo/train/state/checkpoint.h>

namespace stormo::train {

/// A model of which ranks have parts, see chain_in_parts(), that is looked at one segment at a
/// time: so a rank needs memory for one whole segment besides its part. Functions are collectives
/// unless noted otherwise, between steps.
class SegmentParts {
 public:
  /// Arguments are borrowed. Not a collective.
  SegmentParts(model::Chain& chain, ParameterStore& store) : chain_(chain), store_(store) {}

  /// All parameters and buffers. Not a collective itself.
  VisitTensors tensors() const;
  /// Replaces each input by the model's output; ranks may have different numbers of them, also
  /// none. Each segment is made whole once, for all inputs. Returns the most bytes that an output
  /// of a segment had. Throws Error.
  std::size_t forward(std::vector<torch::Tensor>& inputs) const;
  /// How many batches of so many samples a rank can evaluate at once: as many as keep 64 MiB; one,
  /// until agree_on_bytes() has said what a sample keeps. The same on all ranks. Not a collective.
  std::int64_t batches_at_once(std::int64_t samples) const;
  /// The most bytes that this rank has kept for a batch of so many samples; 0: it had none.
  Status agree_on_bytes(comm::Communicator& world, std::size_t bytes, std::int64_t samples);
  bool knows_bytes() const { return bytes_per_sample_ > 0; }

 private:
  model::Chain& chain_;
  ParameterStore& store_;
  std::int64_t bytes_per_sample_ = 0;  // 0: unknown
};

}  // namespace stormo::train
