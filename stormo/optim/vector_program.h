#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <stormo/base/dtype.h>
#include <stormo/base/status.h>

// Arithmetic with vectors that have one number for each weight of a model, and that lie where the
// weights lie: in one process, or in parts on several servers. An optimizer of whole vectors is
// written as a caller of VectorSpace, and only numbers and small programs go between the two. Dean
// et al., "Large scale distributed deep networks" (Sandblaster), NIPS 2012, section 4.2.
namespace stormo::optim {

/// Number 0 is the weights; the others are kept beside them, and are zero at first.
using VectorId = std::uint16_t;
inline constexpr VectorId kWeights = 0;

struct VectorTerm {
  double factor = 0;
  VectorId vector = 0;
  bool operator==(const VectorTerm&) const = default;
};

/// One operation on whole vectors.
struct VectorStep {
  enum class Kind : std::uint8_t {
    kGradient,    ///< to = the gradient of the loss at the weights; gives the loss
    kCombine,     ///< to = the sum of the terms; `to` may be among them; not the weights
    kDot,         ///< gives the scalar product of the vectors of the two terms; factors are unused
    kSetWeights,  ///< weights = the sum of the terms; they wait for another gradient then
    kUpdate,      ///< the weights are updated with the gradient by the optimizer's rule; as above
  } kind = Kind::kGradient;
  VectorId to = 0;
  std::vector<VectorTerm> terms = {};
  double lr = 0;  ///< kUpdate
  bool operator==(const VectorStep&) const = default;
};

/// Operations in their order.
using VectorProgram = std::vector<VectorStep>;

inline VectorStep take_gradient(VectorId to) {
  return {.kind = VectorStep::Kind::kGradient, .to = to};
}
inline VectorStep combine(VectorId to, std::vector<VectorTerm> terms) {
  return {.kind = VectorStep::Kind::kCombine, .to = to, .terms = std::move(terms)};
}
inline VectorStep dot(VectorId a, VectorId b) {
  return {.kind = VectorStep::Kind::kDot, .terms = {{1, a}, {1, b}}};
}
inline VectorStep set_weights(std::vector<VectorTerm> terms) {
  return {.kind = VectorStep::Kind::kSetWeights, .terms = std::move(terms)};
}

/// The vectors, wherever they lie.
class VectorSpace {
 public:
  virtual ~VectorSpace() = default;
  /// Executes a program. Returns losses and scalar products in the order of their steps. Blocks.
  virtual Result<std::vector<double>> run(const VectorProgram& program) = 0;
};

/// Whether all vectors are below `vectors`, no step writes the weights but kSetWeights, and scalar
/// products have two vectors.
bool fits(const VectorProgram& program, std::size_t vectors);

/// A part of a vector in memory; borrowed.
struct VectorRange {
  double factor = 1;
  const void* data = nullptr;
};

/// to[i] = the sum of factor * data[i], added in double precision. `to` may be among the data. The
/// type is kFloat32 or kFloat64. Reads each of the ranges once.
void combine(DType dtype, std::span<const VectorRange> terms, std::size_t elements, void* to);

/// The scalar product, added in double precision. The order of additions depends on the number of
/// elements only.
double dot(DType dtype, const void* a, const void* b, std::size_t elements);

}  // namespace stormo::optim
