#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>

namespace stormo::optim {

/// Finds a step along a direction in which the loss falls: f(t), with slope f'(t). A state machine:
/// the caller evaluates f where it is told to. An accepted t satisfies the strong Wolfe conditions,
///
///   f(t) <= f(0) + c1 t f'(0)  and  |f'(t)| <= c2 |f'(0)|,  c1 = 1e-4, c2 = 0.9,
///
/// or, where rounding hides the difference of losses, the approximate ones of Hager and Zhang (ACM
/// TOMS 32, 2006). Nocedal and Wright, "Numerical optimization", 2006, algorithms 3.5 and 3.6.
class LineSearch {
 public:
  struct Point {
    double t = 0, loss = 0, slope = 0;
  };

  /// `begin`: t = 0, with a negative slope; `first`: the first t to try, > 0.
  LineSearch(const Point& begin, double first) : begin_(begin), before_(begin), next_(first) {}

  /// All of its state, for checkpoints.
  static constexpr std::size_t kNumbers = 16;
  std::array<double, kNumbers> numbers() const;
  explicit LineSearch(std::span<const double, kNumbers> numbers);

  /// Where to evaluate.
  double next() const { return next_; }

  enum class Outcome {
    kGoOn,      ///< evaluate at next()
    kAccepted,  ///< the point that was evaluated
    kFailed,    ///< no point with a smaller loss was found
  };
  Outcome evaluated(double loss, double slope);

 private:
  bool is_low_enough(const Point& point) const;
  bool is_accepted(const Point& point) const;
  Outcome widen(const Point& point);
  Outcome narrow(const Point& point);
  Outcome go_on();

  Point begin_;
  Point before_;              // the point before, while the interval is widened
  std::optional<Point> low_;  // end of the interval with the smaller loss, once there is one
  Point high_;                // the other end
  double next_;
  int evaluations_ = 0;
  bool is_last_ = false;  // what is evaluated next is accepted
};

}  // namespace stormo::optim
