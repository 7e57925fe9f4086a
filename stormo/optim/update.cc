// One pass over memory: strip by strip, gradients are summed in registers, the rule is applied,
// weights and slots are written where they were read, or elsewhere. Highway compiles the file once
// per instruction set; the best is taken at run time. Those between the ones kept bring nothing to
// loops that memory bounds, but cost compile time.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "stormo/optim/update.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <cmath>

#include <stormo/base/instruction_sets.h>
#include <stormo/optim/update.h>
#include <stormo/optim/update_journal.h>
#include <stormo/optim/gradient.inc>
#include <stormo/optim/rules.inc>

HWY_BEFORE_NAMESPACE();
namespace stormo::optim::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Whether prepare() has used the gradient already, and advanced the slots with it.
template <class Rule>
inline constexpr bool kIsPrepared = false;
template <class T>
inline constexpr bool kIsPrepared<Lamb<T>> = true;

/// Weights to read.
template <class T>
const T* weights_of(const UpdateRange& piece) {
  return static_cast<const T*>(piece.old_weights != nullptr ? piece.old_weights : piece.weights);
}

template <class Rule, class T>
struct UpdateStrip {
  UpdateStrip(const Options& options, const UpdateStep& step, const UpdateRange& range, T* to)
      : piece(range),
        rule(options, step),
        gradient_scale(static_cast<T>(step.gradient_scale)),
        out(to),
        old_weights(weights_of<T>(range)) {
    for (std::size_t s = 0; s < Rule::kSlots; ++s) {
      const bool elsewhere = !kIsPrepared<Rule> && range.old_slots[s] != nullptr;
      old_slots[s] = static_cast<const T*>(elsewhere ? range.old_slots[s] : range.slots[s]);
    }
  }

  const UpdateRange& piece;
  Rule rule;
  T gradient_scale;
  T* out;  // where the first element goes: to the weights, or elsewhere in a first phase
  const T* old_weights;
  std::array<const T*, kMaxSlots> old_slots{};

  template <std::size_t kVectors, class D>
  HWY_INLINE void run(D d, std::int64_t begin) const {
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    if constexpr (kVectors > 1) prefetch(begin, kVectors * hn::Lanes(d));
    hn::Vec<D> sum[kVectors];
    if constexpr (!kIsPrepared<Rule>) {
      load_sum<kVectors>(d, piece, begin, sum);
    } else {
      for (auto& v : sum) v = hn::Zero(d);
    }
    for (std::size_t v = 0; v < kVectors; ++v) {
      const std::int64_t i = begin + static_cast<std::int64_t>(v) * lanes;
      const auto g = hn::Mul(sum[v], hn::Set(d, gradient_scale));
      hn::Vec<D> slots[std::max<std::size_t>(Rule::kSlots, 1)];
      for (std::size_t s = 0; s < Rule::kSlots; ++s) slots[s] = hn::LoadU(d, old_slots[s] + i);
      const auto w = rule.apply(d, g, hn::LoadU(d, old_weights + i), slots);
      hn::StoreU(w, d, out + (i - piece.begin));
      for (std::size_t s = 0; s < Rule::kSlots; ++s) hn::StoreU(slots[s], d, slot(s) + i);
      store_copy(d, w, i);
    }
  }

 private:
  HWY_INLINE T* slot(std::size_t s) const { return static_cast<T*>(piece.slots[s]); }

  // A core's own prefetching follows several streams at once late, and stops at every page.
  HWY_INLINE void prefetch(std::int64_t begin, std::size_t count) const {
    fetch_ahead(old_weights, begin, count, sizeof(T));
    for (std::size_t s = 0; s < Rule::kSlots; ++s) {
      fetch_ahead(old_slots[s], begin, count, sizeof(T));
    }
    if constexpr (!kIsPrepared<Rule>) {
      const std::size_t size = piece.gradient_dtype == piece.dtype ? sizeof(T) : 2;
      for (const GradientTerm& g : piece.gradients) fetch_ahead(g.data, begin, count, size);
    }
  }
  static HWY_INLINE void fetch_ahead(const void* data, std::int64_t begin, std::size_t count,
                                     std::size_t size) {
    constexpr std::size_t kAhead = 1024, kLine = 64;  // bytes
    const char* from = static_cast<const char*>(data) + begin * static_cast<std::int64_t>(size);
    for (std::size_t b = 0; b < count * size; b += kLine) hwy::Prefetch(from + b + kAhead);
  }

  template <class Half, class D>
  static HWY_INLINE void store_as(D d, hn::Vec<D> w, std::uint16_t* to) {
    Half::store(d, Half::narrow(d, w), to);
  }

  template <class D>
  HWY_INLINE void store_copy(D d, hn::Vec<D> w, std::int64_t i) const {
    if constexpr (std::is_same_v<T, float>) {
      if (HWY_LIKELY(piece.copy == nullptr)) return;
      auto* to = static_cast<std::uint16_t*>(piece.copy) + i;
      if (piece.copy_dtype == DType::kBFloat16) {
        store_as<stormo::HWY_NAMESPACE::BFloat16>(d, w, to);
      } else {
        store_as<stormo::HWY_NAMESPACE::Float16>(d, w, to);
      }
    }
  }
};

/// Saves what the strip is about to change.
template <class Rule, class T>
struct JournaledStrip {
  UpdateStrip<Rule, T> strip;
  UpdateJournal& journal;

  template <std::size_t kVectors, class D>
  HWY_INLINE void run(D d, std::int64_t begin) const {
    static_assert(kVectors * hn::MaxLanes(d) * sizeof(T) <= UpdateJournal::kPart);
    save<kVectors>(d, strip.old_weights + begin, 0);
    for (std::size_t s = 0; s < Rule::kSlots; ++s) {
      save<kVectors>(d, strip.old_slots[s] + begin, 1 + s);
    }
    journal.note_saved(kVectors * hn::Lanes(d) * sizeof(T));
    strip.template run<kVectors>(d, begin);
  }

 private:
  template <std::size_t kVectors, class D>
  HWY_INLINE void save(D d, const T* from, std::size_t array) const {
    T* const to = reinterpret_cast<T*>(journal.place(array));
    const std::size_t lanes = hn::Lanes(d);
    for (std::size_t v = 0; v < kVectors; ++v) {
      hn::StoreU(hn::LoadU(d, from + v * lanes), d, to + v * lanes);
    }
  }
};

template <class Rule, class T>
void apply(const Options& options, const UpdateStep& step, const UpdateRange& piece) {
  T* const weights = static_cast<T*>(piece.weights) + piece.begin;
  for_each_strip<2, T>(piece.begin, piece.end, UpdateStrip<Rule, T>(options, step, piece, weights));
}

template <class Rule, class T>
void apply(const Options& options, const UpdateStep& step, const UpdateRange& piece,
           UpdateJournal& journal) {
  T* const weights = static_cast<T*>(piece.weights) + piece.begin;
  for_each_strip<2, T>(piece.begin, piece.end,
                       JournaledStrip<Rule, T>{{options, step, piece, weights}, journal});
}

/// `Function`: UpdateFunction or JournaledUpdate.
template <class Function, class T>
Function update_as(const Options& o) {
  switch (o.kind) {
    case Options::Kind::kSgd:
      if (o.momentum != 0) return apply<Sgd<T, true>, T>;
      return apply<Sgd<T, false>, T>;
    case Options::Kind::kAdamW: return apply<Adam<T, true>, T>;
    case Options::Kind::kAdam: return apply<Adam<T, false>, T>;
    case Options::Kind::kAdagrad: return apply<Adagrad<T>, T>;
    case Options::Kind::kRmsProp:
      if (o.momentum != 0) return apply<RmsProp<T, true>, T>;
      return apply<RmsProp<T, false>, T>;
    case Options::Kind::kLion: return apply<Lion<T>, T>;
    case Options::Kind::kLars: return apply<Lars<T>, T>;
    case Options::Kind::kLamb: return apply<Lamb<T>, T>;
    case Options::Kind::kLbfgs:
    case Options::Kind::kMuon: break;
  }
  return [](auto&...) {};
}

/// Calls body(block of at most kBlock elements) over the piece.
template <class Body>
void for_each_block(UpdateRange piece, const Body& body) {
  const std::int64_t end = piece.end;
  for (; piece.begin < end; piece.begin += kBlock) {
    piece.end = std::min(end, piece.begin + kBlock);
    body(piece);
  }
}

template <class T>
double sum_as(const UpdateRange& piece, void* destination) {
  alignas(64) std::array<T, kBlock> sum;
  double squares = 0;
  for_each_block(piece, [&](const UpdateRange& block) {
    T* out = destination != nullptr ? static_cast<T*>(destination) + block.begin : sum.data();
    for_each_strip<4, T>(block.begin, block.end, SumStrip<T>{block, out});
    squares += square_sum(out, block.end - block.begin);
  });
  return squares;
}

template <class T>
SquareSums prepare_as(const Options& o, const UpdateStep& step, const UpdateRange& piece) {
  const T* weights = weights_of<T>(piece);
  if (o.kind == Options::Kind::kLars) {
    const double gradients = sum_as<T>(piece, nullptr);
    return {.weights = square_sum(weights + piece.begin, piece.end - piece.begin),
            .direction = gradients * step.gradient_scale * step.gradient_scale};
  }
  SquareSums sums;
  alignas(64) std::array<T, kBlock> direction;
  for_each_block(piece, [&](UpdateRange block) {
    block.copy = nullptr;
    for_each_strip<2, T>(block.begin, block.end,
                         UpdateStrip<LambPrepare<T>, T>(o, step, block, direction.data()));
    sums.weights += square_sum(weights + block.begin, block.end - block.begin);
    sums.direction += square_sum(direction.data(), block.end - block.begin);
  });
  return sums;
}

UpdateFunction update_of(const Options& options, DType dtype) {
  return dtype == DType::kFloat32 ? update_as<UpdateFunction, float>(options)
                                  : update_as<UpdateFunction, double>(options);
}
JournaledUpdate journaled_update_of(const Options& options, DType dtype) {
  return dtype == DType::kFloat32 ? update_as<JournaledUpdate, float>(options)
                                  : update_as<JournaledUpdate, double>(options);
}
SquareSums prepare_float32(const Options& options, const UpdateStep& step,
                           const UpdateRange& piece) {
  return prepare_as<float>(options, step, piece);
}
SquareSums prepare_float64(const Options& options, const UpdateStep& step,
                           const UpdateRange& piece) {
  return prepare_as<double>(options, step, piece);
}
double sum_float32(const UpdateRange& piece, void* destination) {
  return sum_as<float>(piece, destination);
}
double sum_float64(const UpdateRange& piece, void* destination) {
  return sum_as<double>(piece, destination);
}

}  // namespace stormo::optim::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace stormo::optim {

UpdateFunction update_of(const Options& options, DType dtype) {
  return STORMO_BEST_VERSION(update_of)(options, dtype);
}

JournaledUpdate journaled_update_of(const Options& options, DType dtype) {
  return STORMO_BEST_VERSION(journaled_update_of)(options, dtype);
}

SquareSums prepare(const Options& options, const UpdateStep& step, const UpdateRange& piece) {
  return piece.dtype == DType::kFloat32
             ? STORMO_BEST_VERSION(prepare_float32)(options, step, piece)
             : STORMO_BEST_VERSION(prepare_float64)(options, step, piece);
}

double sum_gradients(const UpdateRange& piece, void* destination) {
  return piece.dtype == DType::kFloat32 ? STORMO_BEST_VERSION(sum_float32)(piece, destination)
                                        : STORMO_BEST_VERSION(sum_float64)(piece, destination);
}

double trust_ratio(const Options& options, const SquareSums& whole) {
  const double weights = std::sqrt(whole.weights), direction = std::sqrt(whole.direction);
  if (weights == 0 || direction == 0) return 1;
  if (options.kind == Options::Kind::kLamb) return weights / direction;
  return options.trust * weights / (direction + options.weight_decay * weights);
}

}  // namespace stormo::optim
#endif  // HWY_ONCE
