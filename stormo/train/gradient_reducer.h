#pragma once

#include <memory>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>
#include <stormo/train/optimizer.h>

namespace stormo::train {

/// Averages the gradients of a fixed list of parameters over the ranks, by one fused all_reduce
/// per element type.
///
/// Large gradients (kInPlaceBytes and up) are reduced where autograd left them; small ones travel
/// packed, one flat buffer per element type in the Arena. Which is which depends on the parameters
/// alone, so all ranks agree; a large gradient that cannot be reduced in place (aliased, strided,
/// absent) goes through a copy. Along with the small ones travels one flag per parameter: a
/// gradient that no rank of positive weight has is undefined on every rank afterwards, as it would
/// be on one device; one that only some ranks have counts as zero on the others, and is defined on
/// all afterwards.
class GradientReducer {
 public:
  static constexpr std::int64_t kInPlaceBytes = 64 << 10;

  /// Both are borrowed or shared for the reducer's life. Throws Error(kInvalidArgument) naming a
  /// parameter that is not dense, not on the CPU or of a type that cannot be reduced.
  GradientReducer(comm::Communicator& world, std::vector<NamedParameter> parameters);
  ~GradientReducer();

  /// Replaces each gradient g by sum(weight_r * g_r) / sum(weight_r) over the ranks r. A rank of
  /// weight 0 contributes nothing and need not have run backward. The sum of weights must be
  /// positive.
  Status reduce(double weight);

 private:
  struct Pack;

  comm::Communicator& world_;
  std::vector<std::unique_ptr<Pack>> packs_;
};

}  // namespace stormo::train
