#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/optim/line_search.h>
#include <stormo/optim/options.h>
#include <stormo/optim/vector_program.h>

namespace stormo::optim {

/// L-BFGS: a quasi-Newton method for batches, which estimates the curvature of the loss from the
/// last steps and gradients. Liu and Nocedal, "On the limited memory BFGS method for large scale
/// optimization", Mathematical Programming 45, 1989. A state machine over a VectorSpace: the caller
/// evaluates loss and gradient at the weights, calls next(), which moves the weights, and so on.
///
/// The direction is computed from scalar products of the vectors in the history (Chen, Wang, Zhou,
/// "Large-scale L-BFGS using MapReduce", NIPS 2014), so that a step costs three programs, whatever
/// the history: with history m about 6 m scalar products, and one sum of 2 m + 1 vectors. A point
/// that is not accepted costs two.
class Lbfgs {
 public:
  /// `options`: of kind kLbfgs. Uses history, and weight_decay as an L2 penalty.
  explicit Lbfgs(const Options& options) : options_(options) {}

  /// Vectors that it needs, besides the weights. 0 for optimizers of another kind.
  static std::size_t vectors(const Options& options);

  /// Names of these vectors in checkpoints, from vector 1 on: "lbfgs_gradient", "lbfgs_s0", ...
  static std::vector<std::string> vector_names(const Options& options);

  enum class Outcome : std::uint8_t {
    kStep,       ///< the weights were accepted, and moved along a new direction
    kSearch,     ///< the weights were not accepted, and moved along the same direction
    kConverged,  ///< no direction has a smaller loss; the weights are the best ones found
  };
  /// The VectorSpace has loss and gradient at the weights, without the penalty. `lr`: length of the
  /// first step that is tried along a direction; 1 is Newton's.
  Result<Outcome> next(double lr, VectorSpace& space);

  /// Whether next() has returned kConverged. Then it must not be called again.
  bool has_converged() const { return has_converged_; }

  /// The weights become the best ones found, for the end of training.
  Status finish(VectorSpace& space);

  /// What a checkpoint needs besides weights and vectors. Empty before the first next().
  std::vector<double> numbers() const;
  /// kInvalidArgument for numbers() of another history or weight_decay; kCorrupt where they cannot
  /// be.
  Status check(std::span<const double> numbers) const;
  /// Goes on where numbers() were taken: `space` has the weights and vectors of that moment, or the
  /// weights of finish(). Before the first next(). The steps that follow are the same, to the bit,
  /// if the space adds in the same order. Fails as check() does.
  Status resume(std::span<const double> numbers, VectorSpace& space);

 private:
  /// A step and the change of its gradient: vectors S and Y.
  struct Pair {
    VectorId s = 0, y = 0;
  };
  Pair place_of(std::uint64_t pair) const;
  Status descend(double lr, VectorProgram program, VectorSpace& space);
  Status extend_history(VectorSpace& space);
  double product(VectorId a, VectorId b) const;
  Result<Outcome> converge(VectorSpace& space);
  void note_product(VectorId a, VectorId b, double value);
  std::vector<VectorTerm> direction() const;
  Status move(double first, VectorProgram program, VectorSpace& space);
  Result<Outcome> restart(double lr, VectorSpace& space);

  Options options_;
  std::deque<Pair> pairs_;            // the oldest first
  std::vector<double> products_;      // a matrix, by the numbers of vectors
  std::optional<LineSearch> search_;  // empty before the first evaluation
  LineSearch::Point accepted_{};      // t is 0
  double gradient_square_ = 0;        // of the accepted point
  bool is_at_accepted_ = true;        // the weights are those of the accepted point
  bool has_converged_ = false;
  std::uint64_t pairs_made_ = 0;
};

}  // namespace stormo::optim
