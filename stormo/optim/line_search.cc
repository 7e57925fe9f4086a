#include <stormo/optim/line_search.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace stormo::optim {
namespace {

constexpr double kDecrease = 1e-4;   // c1
constexpr double kCurvature = 0.9;   // c2
constexpr double kWiden = 4;         // factor of t
constexpr double kRounding = 1e-12;  // of a loss, relative
constexpr double kMargin = 0.1;      // of an interval, next to its ends
constexpr int kMostEvaluations = 25;

/// The minimum of the cubic through two points with their slopes. NaN if there is none.
double cubic_minimum(const LineSearch::Point& a, const LineSearch::Point& b) {
  const double d1 = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.t - b.t);
  const double d2 = std::copysign(std::sqrt(d1 * d1 - a.slope * b.slope), b.t - a.t);
  return b.t - (b.t - a.t) * (b.slope + d2 - d1) / (b.slope - a.slope + 2 * d2);
}

}  // namespace

std::array<double, LineSearch::kNumbers> LineSearch::numbers() const {
  const Point low = low_.value_or(Point{});
  return {begin_.t,
          begin_.loss,
          begin_.slope,
          before_.t,
          before_.loss,
          before_.slope,
          high_.t,
          high_.loss,
          high_.slope,
          low.t,
          low.loss,
          low.slope,
          low_ ? 1.0 : 0.0,
          next_,
          static_cast<double>(evaluations_),
          is_last_ ? 1.0 : 0.0};
}

LineSearch::LineSearch(std::span<const double, kNumbers> numbers)
    : begin_{numbers[0], numbers[1], numbers[2]},
      before_{numbers[3], numbers[4], numbers[5]},
      high_{numbers[6], numbers[7], numbers[8]},
      next_(numbers[13]),
      evaluations_(static_cast<int>(numbers[14])),
      is_last_(numbers[15] != 0) {
  if (numbers[12] != 0) low_ = Point{numbers[9], numbers[10], numbers[11]};
}

bool LineSearch::is_low_enough(const Point& point) const {
  return point.loss <= begin_.loss + kDecrease * point.t * begin_.slope;
}

bool LineSearch::is_accepted(const Point& point) const {
  if (is_low_enough(point)) return std::abs(point.slope) <= -kCurvature * begin_.slope;
  return point.loss <= begin_.loss + kRounding * std::abs(begin_.loss) &&
         point.slope >= kCurvature * begin_.slope &&
         point.slope <= (2 * kDecrease - 1) * begin_.slope;
}

LineSearch::Outcome LineSearch::evaluated(double loss, double slope) {
  const Point point{.t = next_, .loss = loss, .slope = slope};
  ++evaluations_;
  if (std::exchange(is_last_, false) || is_accepted(point)) return Outcome::kAccepted;
  return low_ ? narrow(point) : widen(point);
}

// A loss that is not finite counts as too high.
LineSearch::Outcome LineSearch::widen(const Point& point) {
  if (!(is_low_enough(point) && (evaluations_ == 1 || point.loss < before_.loss))) {
    low_ = before_;
    high_ = point;
  } else if (point.slope >= 0) {
    low_ = point;
    high_ = before_;
  } else {
    before_ = point;
    next_ *= kWiden;
    return evaluations_ < kMostEvaluations ? Outcome::kGoOn : Outcome::kFailed;
  }
  return go_on();
}

LineSearch::Outcome LineSearch::narrow(const Point& point) {
  if (!(is_low_enough(point) && point.loss < low_->loss)) {
    high_ = point;
  } else {
    if (point.slope * (high_.t - low_->t) >= 0) high_ = *low_;
    low_ = point;
  }
  return go_on();
}

LineSearch::Outcome LineSearch::go_on() {
  const double width = high_.t - low_->t;
  const bool is_narrow = std::abs(width) <= 1e-9 * std::max(std::abs(high_.t), std::abs(low_->t));
  if (is_narrow || evaluations_ >= kMostEvaluations) {
    if (low_->t == 0 || !(low_->loss < begin_.loss)) return Outcome::kFailed;
    next_ = low_->t;
    is_last_ = true;
    return Outcome::kGoOn;
  }
  const double near = low_->t + kMargin * width, far = high_.t - kMargin * width;
  const double best = cubic_minimum(*low_, high_);
  next_ = std::isfinite(best) ? std::clamp(best, std::min(near, far), std::max(near, far))
                              : (low_->t + high_.t) / 2;
  return Outcome::kGoOn;
}

}  // namespace stormo::optim
