// Highway compiles the file once per instruction set; the best one is taken at run time.
#include <stormo/codec/matrix_products.h>

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "stormo/codec/matrix_products.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include <stormo/base/instruction_sets.h>

#include <algorithm>
#include <cstddef>

// A namespace for each file: the linker sees these functions.
HWY_BEFORE_NAMESPACE();
namespace stormo::codec::matrix_products::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;

/// So many columns of a row, and of factors, stay in the first cache.
constexpr std::int64_t kBlock = 1024;

float dot(const float* a, const float* b, std::size_t count) {
  const D d;
  const std::size_t lanes = hn::Lanes(d);
  auto even = hn::Zero(d), odd = hn::Zero(d);
  std::size_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    even = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), even);
    odd = hn::MulAdd(hn::LoadU(d, a + i + lanes), hn::LoadU(d, b + i + lanes), odd);
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
  for (; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

/// to += factor * from. Product and sum are rounded one by one.
void add_times(float factor, const float* from, std::size_t count, float* to) {
  const D d;
  const auto by = hn::Set(d, factor);
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(hn::Add(hn::LoadU(d, to + i), hn::Mul(by, hn::LoadU(d, from + i))), d, to + i);
  }
  for (; i < count; ++i) to[i] += factor * from[i];
}

/// Calls visit(first column, columns) for the blocks of a row.
template <class Visit>
void for_each_block(std::int64_t columns, const Visit& visit) {
  for (std::int64_t first = 0; first < columns; first += kBlock) {
    visit(first, static_cast<std::size_t>(std::min(kBlock, columns - first)));
  }
}

void multiply_by(const float* matrix, const MatrixShape& shape, int rank, const float* right,
                 float* left) {
  std::fill_n(left, shape.rows * rank, 0.0f);
  for_each_block(shape.columns, [&](std::int64_t first, std::size_t count) {
    for (std::int64_t i = 0; i < shape.rows; ++i) {
      for (int k = 0; k < rank; ++k) {
        left[k * shape.rows + i] +=
            dot(matrix + i * shape.columns + first, right + k * shape.columns + first, count);
      }
    }
  });
}

void multiply_transposed_by(const float* matrix, const MatrixShape& shape, int rank,
                            const float* left, float* right) {
  std::fill_n(right, shape.columns * rank, 0.0f);
  for_each_block(shape.columns, [&](std::int64_t first, std::size_t count) {
    for (std::int64_t i = 0; i < shape.rows; ++i) {
      for (int k = 0; k < rank; ++k) {
        add_times(left[k * shape.rows + i], matrix + i * shape.columns + first, count,
                  right + k * shape.columns + first);
      }
    }
  });
}

void replace(float* matrix, const MatrixShape& shape, int rank, const float* left,
             const float* own_right, const float* right, float* lost) {
  for_each_block(shape.columns, [&](std::int64_t first, std::size_t count) {
    for (std::int64_t i = 0; i < shape.rows; ++i) {
      const std::int64_t place = i * shape.columns + first;
      std::copy_n(matrix + place, count, lost + place);
      std::fill_n(matrix + place, count, 0.0f);
      for (int k = 0; k < rank; ++k) {
        const float factor = left[k * shape.rows + i];
        add_times(-factor, own_right + k * shape.columns + first, count, lost + place);
        add_times(factor, right + k * shape.columns + first, count, matrix + place);
      }
    }
  });
}

}  // namespace stormo::codec::matrix_products::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace stormo::codec {
namespace matrix_products {

auto* best_multiply() { return STORMO_BEST_VERSION(multiply_by); }
auto* best_multiply_transposed() { return STORMO_BEST_VERSION(multiply_transposed_by); }
auto* best_replace() { return STORMO_BEST_VERSION(replace); }

}  // namespace matrix_products

void multiply(const float* matrix, const MatrixShape& shape, int rank, const float* right,
              float* left) {
  matrix_products::best_multiply()(matrix, shape, rank, right, left);
}

void multiply_transposed(const float* matrix, const MatrixShape& shape, int rank, const float* left,
                         float* right) {
  matrix_products::best_multiply_transposed()(matrix, shape, rank, left, right);
}

void replace_by_product(float* matrix, const MatrixShape& shape, int rank, const float* left,
                        const float* own_right, const float* right, float* lost) {
  matrix_products::best_replace()(matrix, shape, rank, left, own_right, right, lost);
}

}  // namespace stormo::codec
#endif
