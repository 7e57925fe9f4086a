#include <stormo/optim/vector_program.h>

#include <algorithm>
#include <array>

namespace stormo::optim {
namespace {

/// Elements that are combined at a time: they stay in the cache.
constexpr std::size_t kBlock = 1024;
/// Independent sums, so that an addition does not wait for the one before.
constexpr std::size_t kSums = 8;

template <class T>
void combine_as(std::span<const VectorRange> terms, std::size_t elements, T* to) {
  std::array<double, kBlock> sums;
  for (std::size_t begin = 0; begin < elements; begin += kBlock) {
    const std::size_t count = std::min(kBlock, elements - begin);
    std::fill_n(sums.begin(), count, 0.0);
    for (const VectorRange& term : terms) {
      const T* from = static_cast<const T*>(term.data) + begin;
      for (std::size_t i = 0; i < count; ++i) sums[i] += term.factor * static_cast<double>(from[i]);
    }
    for (std::size_t i = 0; i < count; ++i) to[begin + i] = static_cast<T>(sums[i]);
  }
}

template <class T>
double dot_as(const T* a, const T* b, std::size_t elements) {
  std::array<double, kSums> sums{};
  const std::size_t whole = elements / kSums * kSums;
  for (std::size_t i = 0; i < whole; i += kSums) {
    for (std::size_t j = 0; j < kSums; ++j) {
      sums[j] += static_cast<double>(a[i + j]) * static_cast<double>(b[i + j]);
    }
  }
  double sum = 0;
  for (std::size_t i = whole; i < elements; ++i) {
    sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  }
  for (const double part : sums) sum += part;
  return sum;
}

bool fits(const VectorStep& step, std::size_t vectors) {
  using enum VectorStep::Kind;
  const bool writes = step.kind == kGradient || step.kind == kCombine;
  if (writes ? step.to == kWeights || step.to >= vectors : step.to != 0) return false;
  const bool has_terms = step.kind == kCombine || step.kind == kSetWeights;
  if (!has_terms && step.terms.size() != (step.kind == kDot ? 2 : 0)) return false;
  return std::ranges::all_of(step.terms,
                             [vectors](const VectorTerm& t) { return t.vector < vectors; });
}

}  // namespace

bool fits(const VectorProgram& program, std::size_t vectors) {
  return std::ranges::all_of(program,
                             [vectors](const VectorStep& step) { return fits(step, vectors); });
}

void combine(DType dtype, std::span<const VectorRange> terms, std::size_t elements, void* to) {
  if (dtype == DType::kFloat64) {
    combine_as(terms, elements, static_cast<double*>(to));
  } else {
    combine_as(terms, elements, static_cast<float*>(to));
  }
}

double dot(DType dtype, const void* a, const void* b, std::size_t elements) {
  if (dtype == DType::kFloat64) {
    return dot_as(static_cast<const double*>(a), static_cast<const double*>(b), elements);
  }
  return dot_as(static_cast<const float*>(a), static_cast<const float*>(b), elements);
}

}  // namespace stormo::optim
