#pragma once

#include <cstdint>

#include <stormo/codec/low_rank.h>

// Products of a matrix, row by row, with a few columns, each of which lies in one piece.
namespace stormo::codec {

/// left = matrix * right: `rank` columns of shape.rows numbers, of as many of shape.columns.
void multiply(const float* matrix, const MatrixShape& shape, int rank, const float* right,
              float* left);
/// right = transposed matrix * left.
void multiply_transposed(const float* matrix, const MatrixShape& shape, int rank, const float* left,
                         float* right);
/// lost = matrix - left * transposed(own_right), then matrix = left * transposed(right). The latter
/// has the same bits on all processors.
void replace_by_product(float* matrix, const MatrixShape& shape, int rank, const float* left,
                        const float* own_right, const float* right, float* lost);

}  // namespace stormo::codec
