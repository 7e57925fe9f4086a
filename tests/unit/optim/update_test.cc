#include <stormo/optim/update.h>

#include <bit>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include <stormo/base/rng.h>
#include <stormo/comm/kernels/kernels.h>

namespace stormo::optim {
namespace {

using Kind = Options::Kind;

constexpr Kind kKinds[] = {Kind::kSgd,     Kind::kAdamW, Kind::kAdam, Kind::kAdagrad,
                           Kind::kRmsProp, Kind::kLion,  Kind::kLars, Kind::kLamb};

template <class T>
std::vector<T> numbers(std::size_t count, std::uint64_t seed) {
  Rng rng(seed, "optim");
  std::vector<T> out(count);
  for (T& x : out) x = static_cast<T>(rng.uniform() * 2 - 1);
  return out;
}

/// One weight with its slots; the update as its papers write it, in double precision.
struct Oracle {
  double w = 0, a = 0, b = 0;  // slots: first, second

  // the direction of LAMB, after the moments have been advanced
  double lamb_direction(const Options& o, double t) const {
    const double m = a / (1 - std::pow(o.beta1, t)), v = b / (1 - std::pow(o.beta2, t));
    return m / (std::sqrt(v) + o.epsilon) + o.weight_decay * w;
  }
  void advance_moments(const Options& o, double g) {
    a = o.beta1 * a + (1 - o.beta1) * g;
    b = o.beta2 * b + (1 - o.beta2) * g * g;
  }
  void update(const Options& o, double lr, double t, double ratio, double g) {
    switch (o.kind) {
      case Kind::kSgd: {
        g += o.weight_decay * w;
        a = o.momentum * a + g;
        w -= lr * (o.momentum == 0 ? g : o.nesterov ? g + o.momentum * a : a);
        break;
      }
      case Kind::kAdam:
      case Kind::kAdamW: {
        if (o.kind == Kind::kAdam) g += o.weight_decay * w;
        if (o.kind == Kind::kAdamW) w -= lr * o.weight_decay * w;
        advance_moments(o, g);
        const double m = a / (1 - std::pow(o.beta1, t)), v = b / (1 - std::pow(o.beta2, t));
        w -= lr * m / (std::sqrt(v) + o.epsilon);
        break;
      }
      case Kind::kAdagrad:
        g += o.weight_decay * w;
        a += g * g;
        w -= lr * g / (std::sqrt(a) + o.epsilon);
        break;
      case Kind::kRmsProp:
        g += o.weight_decay * w;
        a = o.alpha * a + (1 - o.alpha) * g * g;
        g /= std::sqrt(a) + o.epsilon;
        b = o.momentum * b + g;
        w -= lr * (o.momentum == 0 ? g : b);
        break;
      case Kind::kLion: {
        const double c = o.beta1 * a + (1 - o.beta1) * g;
        w = w - lr * ((c > 0) - (c < 0) + o.weight_decay * w);
        a = o.beta2 * a + (1 - o.beta2) * g;
        break;
      }
      case Kind::kLars:
        a = o.momentum * a + lr * ratio * (g + o.weight_decay * w);
        w -= a;
        break;
      case Kind::kLamb: w -= lr * ratio * lamb_direction(o, t); break;
      case Kind::kLbfgs:
      case Kind::kMuon: break;
    }
  }
};

double norm(const std::vector<double>& v) {
  double sum = 0;
  for (const double x : v) sum += x * x;
  return std::sqrt(sum);
}

/// A step of the oracle over a whole parameter; returns the trust ratio.
double oracle_step(std::vector<Oracle>& weights, const Options& o, double lr, int t,
                   const std::vector<double>& gradient) {
  double ratio = 1;
  if (needs_norms(o.kind)) {
    std::vector<double> w, direction;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if (o.kind == Kind::kLamb) weights[i].advance_moments(o, gradient[i]);
      w.push_back(weights[i].w);
      direction.push_back(o.kind == Kind::kLamb ? weights[i].lamb_direction(o, t) : gradient[i]);
    }
    ratio = o.kind == Kind::kLamb
                ? norm(w) / norm(direction)
                : o.trust * norm(w) / (norm(direction) + o.weight_decay * norm(w));
  }
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i].update(o, lr, t, ratio, gradient[i]);
  return ratio;
}

template <class T>
constexpr DType kDType = DTypeOf<T>::value;

/// The same parameter under test, updated in pieces of `cut` elements.
template <class T>
struct Parameter {
  std::vector<T> weights, first, second;

  explicit Parameter(std::vector<T> w)
      : weights(std::move(w)), first(weights.size()), second(weights.size()) {}

  /// `old`: read in the place of these arrays.
  double step(const Options& o, double lr, int t, const std::vector<T>& gradient, std::size_t cut,
              double scale = 1, const Parameter* old = nullptr) {
    UpdateStep step{.lr = lr, .number = t, .gradient_scale = scale};
    SquareSums sums;
    const GradientTerm source{gradient.data(), 1};
    const auto for_each_piece = [&](const auto& body) {
      for (std::size_t i = 0; i < weights.size(); i += cut) {
        UpdateRange range{.begin = static_cast<std::int64_t>(i),
                          .end = static_cast<std::int64_t>(std::min(i + cut, weights.size())),
                          .dtype = kDType<T>,
                          .weights = weights.data(),
                          .gradients = {&source, 1},
                          .gradient_dtype = kDType<T>,
                          .slots = {first.data(), second.data()}};
        if (old != nullptr) {
          range.old_weights = old->weights.data();
          range.old_slots = {old->first.data(), old->second.data()};
        }
        body(range);
      }
    };
    if (needs_norms(o.kind)) {
      for_each_piece([&](const UpdateRange& p) {
        const SquareSums part = prepare(o, step, p);
        sums.weights += part.weights;
        sums.direction += part.direction;
      });
      step.trust_ratio = trust_ratio(o, sums);
    }
    for_each_piece([&](const UpdateRange& p) { update(o, step, p); });
    return step.trust_ratio;
  }
};

std::vector<Options> variants() {
  std::vector<Options> out;
  for (const Kind kind : kKinds) {
    for (const double momentum : {0.0, 0.9}) {
      for (const double decay : {0.0, 0.03}) {
        Options o{.kind = kind, .momentum = momentum, .weight_decay = decay};
        if (kind == Kind::kLion) o.beta2 = 0.99;
        out.push_back(o);
        if (kind != Kind::kSgd || momentum == 0) continue;
        o.nesterov = true;
        out.push_back(o);
      }
    }
  }
  return out;
}

template <class T>
void follows_the_formulas(double tolerance) {
  constexpr std::size_t kCount = 301;  // vectors and a rest
  for (const Options& o : variants()) {
    SCOPED_TRACE("kind " + std::to_string(static_cast<int>(o.kind)) + " momentum " +
                 std::to_string(o.momentum) + " decay " + std::to_string(o.weight_decay));
    Parameter<T> ours(numbers<T>(kCount, 1));
    std::vector<Oracle> oracle(kCount);
    for (std::size_t i = 0; i < kCount; ++i) oracle[i].w = static_cast<double>(ours.weights[i]);
    for (int t = 1; t <= 5; ++t) {
      const std::vector<T> gradient = numbers<T>(kCount, 10 + static_cast<std::uint64_t>(t));
      const double lr = 0.01 * t;
      const double expected =
          oracle_step(oracle, o, lr, t, std::vector<double>(gradient.begin(), gradient.end()));
      const double ratio = ours.step(o, lr, t, gradient, kCount);
      EXPECT_NEAR(ratio / expected, 1, 1e-6);
    }
    for (std::size_t i = 0; i < kCount; ++i) {
      ASSERT_NEAR(static_cast<double>(ours.weights[i]), oracle[i].w, tolerance) << "element " << i;
    }
  }
}

TEST(Update, FollowsTheFormulas) {
  follows_the_formulas<double>(1e-13);
  follows_the_formulas<float>(3e-6);
}

TEST(Update, AnElementDoesNotDependOnTheCut) {
  constexpr std::size_t kCount = 5000;
  for (const Options& o : variants()) {
    if (needs_norms(o.kind)) continue;  // sums of squares are added in another order
    Parameter<float> whole(numbers<float>(kCount, 1)), cut(whole.weights);
    for (int t = 1; t <= 3; ++t) {
      const auto gradient = numbers<float>(kCount, 20 + static_cast<std::uint64_t>(t));
      whole.step(o, 0.01, t, gradient, kCount);
      cut.step(o, 0.01, t, gradient, 37);
    }
    EXPECT_EQ(whole.weights, cut.weights) << static_cast<int>(o.kind);
    EXPECT_EQ(whole.first, cut.first) << static_cast<int>(o.kind);
  }
}

// Bit by bit; and what was there before does not matter.
TEST(Update, MayBeWrittenElsewhere) {
  constexpr std::size_t kCount = 301;
  for (const Options& o : variants()) {
    SCOPED_TRACE(static_cast<int>(o.kind));
    Parameter<float> in_place(numbers<float>(kCount, 1));
    for (int t = 1; t <= 3; ++t) {
      const auto gradient = numbers<float>(kCount, 40 + static_cast<std::uint64_t>(t));
      const Parameter<float> before = in_place;
      Parameter<float> old = in_place, elsewhere(numbers<float>(kCount, 2));
      elsewhere.first = elsewhere.second = elsewhere.weights;
      elsewhere.step(o, 0.01, t, gradient, kCount, 1, &old);
      in_place.step(o, 0.01, t, gradient, kCount);
      const std::size_t slots = slot_names(o).size();
      EXPECT_EQ(elsewhere.weights, in_place.weights);
      EXPECT_TRUE(slots < 1 || elsewhere.first == in_place.first);
      EXPECT_TRUE(slots < 2 || elsewhere.second == in_place.second);
      EXPECT_TRUE(old.weights == before.weights && old.first == before.first &&
                  old.second == before.second);
    }
  }
}

TEST(Update, ScalesTheGradient) {
  for (const Options& o : variants()) {
    auto gradient = numbers<double>(97, 4);
    Parameter<double> scaled(numbers<double>(97, 3)), plain(scaled.weights);
    scaled.step(o, 0.1, 1, gradient, 97, 0.25);
    for (double& g : gradient) g *= 0.25;
    plain.step(o, 0.1, 1, gradient, 97);
    for (std::size_t i = 0; i < 97; ++i) {
      ASSERT_NEAR(scaled.weights[i], plain.weights[i], 1e-15) << static_cast<int>(o.kind);
    }
  }
}

/// What comm gives for a sum of averages; the update has to see the same bits.
template <class T>
void sums_as_comm_does() {
  for (const std::size_t ranks : {1u, 2u, 3u, 5u}) {
    constexpr std::size_t kCount = 4133;
    std::vector<std::vector<T>> data;
    std::vector<GradientTerm> sources;
    std::vector<comm::Operand> operands;
    for (std::size_t r = 0; r < ranks; ++r) data.push_back(numbers<T>(kCount, 30 + r));
    for (std::size_t r = 0; r < ranks; ++r) {
      const double scale = static_cast<double>(r + 3) / 17;
      sources.push_back({data[r].data(), scale});
      operands.push_back({data[r].data(), scale});
    }
    std::vector<T> expected(kCount), sum(kCount);
    void* to = expected.data();
    comm::reduce(kDType<T>, comm::Combine::kSum, operands, {&to, 1},
                 static_cast<std::int64_t>(kCount));

    std::vector<T> weights(kCount);
    const UpdateRange piece{.end = static_cast<std::int64_t>(kCount),
                            .dtype = kDType<T>,
                            .weights = weights.data(),
                            .gradients = sources,
                            .gradient_dtype = kDType<T>};
    double squares = 0;
    for (const T x : expected) squares += static_cast<double>(x) * static_cast<double>(x);
    EXPECT_NEAR(sum_gradients(piece, sum.data()) / squares, 1, 1e-12);
    EXPECT_NEAR(sum_gradients(piece, nullptr) / squares, 1, 1e-12);
    EXPECT_EQ(sum, expected) << ranks << " ranks";
    // SGD with rate -1 on zeros: the new weights are the gradient
    update({.kind = Kind::kSgd}, {.lr = -1}, piece);
    EXPECT_EQ(weights, expected) << ranks << " ranks";
  }
}

TEST(Gradients, AreSummedBitForBitAsByComm) {
  sums_as_comm_does<float>();
  sums_as_comm_does<double>();
}

TEST(Gradients, MayBeSummedInPlace) {
  auto a = numbers<float>(1000, 1);
  const auto b = numbers<float>(1000, 2), before = a;
  const std::vector<GradientTerm> sources{{a.data(), 1}, {b.data(), 1}};
  sum_gradients({.end = 1000, .gradients = sources}, a.data());
  for (std::size_t i = 0; i < 1000; ++i) ASSERT_EQ(a[i], before[i] + b[i]);
}

float widened(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

TEST(Update, TakesBfloat16GradientsAndWritesABfloat16Copy) {
  constexpr std::size_t kCount = 77;
  auto exact = numbers<float>(kCount, 5);
  std::vector<std::uint16_t> half, copy(kCount);
  for (float& x : exact) {
    half.push_back(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16));
    x = widened(half.back());
  }
  Parameter<float> reference(numbers<float>(kCount, 6)), mixed(reference.weights);
  const Options adamw{.kind = Kind::kAdamW};
  reference.step(adamw, 0.1, 1, exact, kCount);
  const GradientTerm source{half.data(), 1};
  update(adamw, {.lr = 0.1},
         {.end = kCount,
          .weights = mixed.weights.data(),
          .gradients = {&source, 1},
          .gradient_dtype = DType::kBFloat16,
          .slots = {mixed.first.data(), mixed.second.data()},
          .copy = copy.data()});
  EXPECT_EQ(mixed.weights, reference.weights);
  for (std::size_t i = 0; i < kCount; ++i) {
    const float w = mixed.weights[i], rounded = widened(copy[i]);
    EXPECT_LE(std::abs(w - rounded), std::abs(w) / 256) << i;
    const float above = widened(static_cast<std::uint16_t>(copy[i] + 1));
    const float below = widened(static_cast<std::uint16_t>(copy[i] - 1));
    EXPECT_LE(std::abs(w - rounded), std::abs(w - above)) << i;
    EXPECT_LE(std::abs(w - rounded), std::abs(w - below)) << i;
  }
}

TEST(TrustRatio, IsOneWhereANormIsZero) {
  for (const Kind kind : {Kind::kLars, Kind::kLamb}) {
    EXPECT_EQ(trust_ratio({.kind = kind}, {.weights = 0, .direction = 4}), 1);
    EXPECT_EQ(trust_ratio({.kind = kind}, {.weights = 4, .direction = 0}), 1);
  }
  EXPECT_DOUBLE_EQ(trust_ratio({.kind = Kind::kLamb}, {.weights = 9, .direction = 4}), 1.5);
  const Options lars{.kind = Kind::kLars, .weight_decay = 0.5, .trust = 0.01};
  EXPECT_DOUBLE_EQ(trust_ratio(lars, {.weights = 4, .direction = 9}), 0.01 * 2 / (3 + 0.5 * 2));
}

}  // namespace
}  // namespace stormo::optim
