#pragma once

#include <array>
#include <cstdint>
#include <span>

#include <stormo/base/dtype.h>
#include <stormo/optim/options.h>

// Updates of weights in one pass over memory, on contiguous ranges. The functions do not know
// parameters or owners. The result for an element depends neither on its position nor on the range,
// so any division into pieces gives the same bits. Nothing is allocated, and arguments are not
// checked. Several threads may update pieces at the same time if these do not overlap.
namespace stormo::optim {

/// One rank's term of a gradient.
struct GradientTerm {
  const void* data = nullptr;
  double scale = 1;
};

/// Elements [begin, end) of the arrays of one parameter; borrowed. Pieces of the same arrays differ
/// only in begin and end.
struct UpdateRange {
  std::int64_t begin = 0, end = 0;
  DType dtype = DType::kFloat32;  ///< of weights and slots: kFloat32 or kFloat64
  void* weights = nullptr;
  /// The gradient is the sum of scale * data over all sources, in their order, with the same bits
  /// as comm::reduce for float32 and float64. At least one source.
  std::span<const GradientTerm> gradients;
  DType gradient_dtype = DType::kFloat32;  ///< `dtype`, or with float32 also a 16-bit type
  std::array<void*, kMaxSlots> slots{};    ///< in the order of slot_names()
  void* copy = nullptr;                    ///< gets the new weights, rounded to 16 bits; or null
  DType copy_dtype = DType::kBFloat16;
  /// Arrays that are read in the place of weights and slots, and stay as they are; null: in place.
  const void* old_weights = nullptr;
  std::array<const void*, kMaxSlots> old_slots{};
};

/// The values of an update that change from step to step.
struct UpdateStep {
  double lr = 0;
  std::int64_t number = 1;    ///< number of this update of these weights, from 1
  double gradient_scale = 1;  ///< multiplies the sum of gradients: clipping, 1 / loss scale
  double trust_ratio = 1;     ///< of the whole parameter, from trust_ratio(); kLars, kLamb
};

/// Updates weights, slots and copy by one step. Not without updates_ranges(). kLamb reads the
/// slots that prepare() wrote, never old ones. Memory traffic of AdamW in float32: 28 bytes per
/// weight, and 4 for each source after the first.
using UpdateFunction = void (*)(const Options& options, const UpdateStep& step,
                                const UpdateRange& piece);
/// The one of this rule, for weights of this type; for who updates again and again.
UpdateFunction update_of(const Options& options, DType dtype);
inline void update(const Options& options, const UpdateStep& step, const UpdateRange& piece) {
  update_of(options, piece.dtype)(options, step, piece);
}

/// Sums of squares of the two vectors whose norms make up a trust ratio.
struct SquareSums {
  double weights = 0;
  double direction = 0;  ///< kLars: gradient; kLamb: update before it is scaled
};

/// First phase of kLars and kLamb; updates the slots of kLamb. Sums over the pieces of a parameter
/// give trust_ratio(), which update() needs with the same piece and step.
SquareSums prepare(const Options& options, const UpdateStep& step, const UpdateRange& piece);

/// LARS: trust |w| / (|g| + weight_decay |w|); LAMB: |w| / |update|; 1 if a norm is zero.
double trust_ratio(const Options& options, const SquareSums& whole);

/// Writes the sum of piece.gradients to elements [begin, end) of `destination` (of piece.dtype; may
/// be one of the sources; null: not written) and returns the sum of its squares, added in double
/// precision. Does not use weights or slots.
double sum_gradients(const UpdateRange& piece, void* destination);

}  // namespace stormo::optim
