#include <stormo/optim/lbfgs.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

namespace stormo::optim {
namespace {

// Vectors besides the weights. The pairs of the history follow.
constexpr VectorId kGradient = 1;          // at the weights
constexpr VectorId kAccepted = 2;          // the weights of the last accepted point
constexpr VectorId kAcceptedGradient = 3;  // its gradient
constexpr VectorId kDirection = 4;
constexpr VectorId kFirstPair = 5;

// Numbers of a checkpoint. Those of the line search follow, then the products.
enum : std::size_t {
  kHistory,
  kWeightDecay,
  kHasConverged,
  kHasSearch,
  kIsAtAccepted,
  kAcceptedLoss,
  kAcceptedSlope,
  kGradientSquare,
  kPairsMade,
  kPairs,
  kSearch,
};

/// A pair whose curvature is smaller, relative to its vectors, would make the estimate singular.
constexpr double kLeastCurvature = 1e-12;
/// A step whose expected decrease is smaller, relative to the loss, changes nothing.
constexpr double kLeastDecrease = 1e-20;

}  // namespace

std::size_t Lbfgs::vectors(const Options& options) {
  if (options.kind != Options::Kind::kLbfgs) return 0;
  return kFirstPair - 1 + 2 * static_cast<std::size_t>(options.history);
}

double Lbfgs::product(VectorId a, VectorId b) const {
  return products_[std::size_t{a} * (vectors(options_) + 1) + b];
}

void Lbfgs::note_product(VectorId a, VectorId b, double value) {
  const std::size_t count = vectors(options_) + 1;
  products_.resize(count * count);
  products_[a * count + b] = products_[b * count + a] = value;
}

Result<Lbfgs::Outcome> Lbfgs::next(double lr, VectorSpace& space) {
  VectorProgram program{take_gradient(kGradient)};
  const double decay = options_.weight_decay;
  if (decay != 0) program.push_back(combine(kGradient, {{1, kGradient}, {decay, kWeights}}));
  program.push_back(dot(kGradient, kGradient));
  program.push_back(dot(kGradient, kDirection));
  if (decay != 0) program.push_back(dot(kWeights, kWeights));
  STORMO_ASSIGN_OR_RETURN(const std::vector<double> found, space.run(program));
  const double loss = found[0] + (decay != 0 ? decay / 2 * found[3] : 0);
  if (!search_) {
    accepted_ = {.loss = loss};
    gradient_square_ = found[1];
    if (gradient_square_ == 0) return converge(space);
    STORMO_RETURN_IF_ERROR(descend(
        lr, {combine(kAccepted, {{1, kWeights}}), combine(kAcceptedGradient, {{1, kGradient}})},
        space));
    return Outcome::kStep;
  }
  switch (search_->evaluated(loss, found[2])) {
    case LineSearch::Outcome::kGoOn: {
      STORMO_RETURN_IF_ERROR(
          space.run({set_weights({{1, kAccepted}, {search_->next(), kDirection}})}).status());
      return Outcome::kSearch;
    }
    case LineSearch::Outcome::kFailed: return restart(lr, space);
    case LineSearch::Outcome::kAccepted: break;
  }
  accepted_ = {.loss = loss};
  gradient_square_ = found[1];
  STORMO_RETURN_IF_ERROR(extend_history(space));
  const std::vector<VectorTerm> terms = direction();
  for (const VectorTerm& term : terms) {
    accepted_.slope += term.factor * product(term.vector, kGradient);
  }
  if (!(accepted_.slope < 0)) return restart(lr, space);
  if (-accepted_.slope <= kLeastDecrease * std::abs(loss)) return converge(space);
  STORMO_RETURN_IF_ERROR(move(lr, {combine(kDirection, terms)}, space));
  return Outcome::kStep;
}

/// Against the gradient of the accepted point: nothing is known of the curvature. The first step
/// that is tried is as long as the gradient, but at most lr.
Status Lbfgs::descend(double lr, VectorProgram program, VectorSpace& space) {
  pairs_.clear();
  accepted_.slope = -gradient_square_;
  program.push_back(combine(kDirection, {{-1, kAcceptedGradient}}));
  return move(lr * std::min(1.0, 1 / std::sqrt(gradient_square_)), std::move(program), space);
}

/// A new search from the accepted point, along the direction that `program` makes.
Status Lbfgs::move(double first, VectorProgram program, VectorSpace& space) {
  search_.emplace(accepted_, first);
  program.push_back(set_weights({{1, kAccepted}, {first, kDirection}}));
  is_at_accepted_ = false;
  return space.run(program).status();
}

Lbfgs::Pair Lbfgs::place_of(std::uint64_t pair) const {
  const auto history = static_cast<std::uint64_t>(options_.history);
  const auto s = static_cast<VectorId>(kFirstPair + 2 * (pair % history));
  return {.s = s, .y = static_cast<VectorId>(s + 1)};
}

/// The step to the weights and the change of the gradient become the newest pair, in the place of
/// the oldest one. All scalar products of pairs and gradient are known then.
Status Lbfgs::extend_history(VectorSpace& space) {
  const Pair pair = place_of(pairs_made_++);
  if (pairs_.size() == static_cast<std::size_t>(options_.history)) pairs_.pop_front();
  pairs_.push_back(pair);
  VectorProgram program{combine(pair.s, {{1, kWeights}, {-1, kAccepted}}),
                        combine(pair.y, {{1, kGradient}, {-1, kAcceptedGradient}}),
                        combine(kAccepted, {{1, kWeights}}),
                        combine(kAcceptedGradient, {{1, kGradient}})};
  std::vector<std::pair<VectorId, VectorId>> wanted;
  for (const Pair& other : pairs_) {
    for (const VectorId a : {other.s, other.y}) {
      wanted.emplace_back(a, kGradient);
      wanted.emplace_back(a, pair.s);
      if (a != pair.s) wanted.emplace_back(a, pair.y);
    }
  }
  for (const auto& [a, b] : wanted) program.push_back(dot(a, b));
  STORMO_ASSIGN_OR_RETURN(const std::vector<double> found, space.run(program));
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    note_product(wanted[i].first, wanted[i].second, found[i]);
  }
  note_product(kGradient, kGradient, gradient_square_);
  const double curvature = product(pair.s, pair.y);
  const double size = std::sqrt(product(pair.s, pair.s) * product(pair.y, pair.y));
  if (!(curvature > kLeastCurvature * size)) {
    pairs_.pop_back();
    --pairs_made_;  // the next pair takes its place: those after it belong to others
  }
  return {};
}

/// The two loops of L-BFGS, over factors of gradient and pairs in place of vectors.
std::vector<VectorTerm> Lbfgs::direction() const {
  std::vector<VectorTerm> terms = {{-1, kGradient}};
  for (const Pair& pair : pairs_) {
    terms.push_back({0, pair.s});
    terms.push_back({0, pair.y});
  }
  const auto with = [&](VectorId vector) {
    double sum = 0;
    for (const VectorTerm& term : terms) sum += term.factor * product(term.vector, vector);
    return sum;
  };
  std::vector<double> alphas(pairs_.size());
  for (std::size_t i = pairs_.size(); i-- > 0;) {
    alphas[i] = with(pairs_[i].s) / product(pairs_[i].s, pairs_[i].y);
    terms[2 + 2 * i].factor -= alphas[i];
  }
  if (!pairs_.empty()) {
    const Pair& last = pairs_.back();
    const double scale = product(last.s, last.y) / product(last.y, last.y);
    for (VectorTerm& term : terms) term.factor *= scale;
  }
  for (std::size_t i = 0; i < pairs_.size(); ++i) {
    const double beta = with(pairs_[i].y) / product(pairs_[i].s, pairs_[i].y);
    terms[1 + 2 * i].factor += alphas[i] - beta;
  }
  return terms;
}

/// No step along the direction was good.
Result<Lbfgs::Outcome> Lbfgs::restart(double lr, VectorSpace& space) {
  if (pairs_.empty() || gradient_square_ == 0) return converge(space);
  STORMO_RETURN_IF_ERROR(descend(lr, {}, space));
  return Outcome::kStep;
}

Result<Lbfgs::Outcome> Lbfgs::converge(VectorSpace& space) {
  has_converged_ = true;
  STORMO_RETURN_IF_ERROR(finish(space));
  return Outcome::kConverged;
}

Status Lbfgs::finish(VectorSpace& space) {
  if (std::exchange(is_at_accepted_, true)) return {};
  return space.run({set_weights({{1, kAccepted}})}).status();
}

std::vector<std::string> Lbfgs::vector_names(const Options& options) {
  std::vector<std::string> names;
  if (vectors(options) == 0) return names;
  for (const char* name : {"gradient", "accepted", "accepted_gradient", "direction"}) {
    names.push_back(fmt::format("lbfgs_{}", name));
  }
  for (int i = 0; i < options.history; ++i) {
    names.push_back(fmt::format("lbfgs_s{}", i));
    names.push_back(fmt::format("lbfgs_y{}", i));
  }
  return names;
}

// The pairs are always the last ones that were made. Before the first pair there are no products.
std::vector<double> Lbfgs::numbers() const {
  if (!search_ && !has_converged_) return {};
  std::vector<double> out(kSearch + LineSearch::kNumbers);
  out[kHistory] = options_.history;
  out[kWeightDecay] = options_.weight_decay;
  out[kHasConverged] = has_converged_ ? 1 : 0;
  out[kHasSearch] = search_ ? 1 : 0;
  out[kIsAtAccepted] = is_at_accepted_ ? 1 : 0;
  out[kAcceptedLoss] = accepted_.loss;
  out[kAcceptedSlope] = accepted_.slope;
  out[kGradientSquare] = gradient_square_;
  out[kPairsMade] = static_cast<double>(pairs_made_);
  out[kPairs] = static_cast<double>(pairs_.size());
  if (search_) std::ranges::copy(search_->numbers(), out.begin() + kSearch);
  out.insert(out.end(), products_.begin(), products_.end());
  const std::size_t count = vectors(options_) + 1;
  out.resize(kSearch + LineSearch::kNumbers + count * count);
  return out;
}

Status Lbfgs::check(std::span<const double> numbers) const {
  constexpr std::size_t kProducts = kSearch + LineSearch::kNumbers;
  if (numbers.size() < kProducts) return Status(Code::kCorrupt, "a state of L-BFGS is too short");
  if (numbers[kHistory] != options_.history || numbers[kWeightDecay] != options_.weight_decay) {
    return invalid_argument(fmt::format(
        "the L-BFGS of the checkpoint has optimizer.history={} and optimizer.weight_decay={}, that "
        "of the run {} and {}: resume with those of the checkpoint",
        numbers[kHistory], numbers[kWeightDecay], options_.history, options_.weight_decay));
  }
  const std::size_t count = vectors(options_) + 1;
  const double made = numbers[kPairsMade], pairs = numbers[kPairs];
  const bool finite = std::ranges::all_of(numbers, [](double x) { return std::isfinite(x); });
  const bool whole = pairs == std::floor(pairs) && made == std::floor(made);
  const bool is_possible = finite && whole && numbers.size() == kProducts + count * count &&
                           pairs >= 0 && pairs <= options_.history && pairs <= made &&
                           made < 0x1p53 &&
                           (numbers[kHasSearch] != 0 || numbers[kHasConverged] != 0);
  return is_possible ? Status() : Status(Code::kCorrupt, "a state of L-BFGS that cannot be");
}

Status Lbfgs::resume(std::span<const double> numbers, VectorSpace& space) {
  STORMO_RETURN_IF_ERROR(check(numbers));
  has_converged_ = numbers[kHasConverged] != 0;
  accepted_ = {.loss = numbers[kAcceptedLoss], .slope = numbers[kAcceptedSlope]};
  gradient_square_ = numbers[kGradientSquare];
  pairs_made_ = static_cast<std::uint64_t>(numbers[kPairsMade]);
  pairs_.clear();
  for (auto i = static_cast<std::uint64_t>(numbers[kPairs]); i > 0; --i) {
    pairs_.push_back(place_of(pairs_made_ - i));
  }
  const auto products = numbers.subspan(kSearch + LineSearch::kNumbers);
  products_.assign(products.begin(), products.end());
  if (numbers[kHasSearch] != 0) search_.emplace(numbers.subspan<kSearch, LineSearch::kNumbers>());
  is_at_accepted_ = numbers[kIsAtAccepted] != 0;
  if (!is_at_accepted_ || has_converged_) return {};
  is_at_accepted_ = false;  // back to the point that was being tried
  return space.run({set_weights({{1, kAccepted}, {search_->next(), kDirection}})}).status();
}

}  // namespace stormo::optim
