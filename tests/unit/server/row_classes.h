#pragma once

#include <cstdint>
#include <vector>

#include <stormo/server/shard.h>

namespace stormo::server {

/// A table of zeros whose rows are pushed in classes: row r is of class r % kClasses. A push has
/// all rows of one class, gradients of ones, and the learning rate 1. So with plain SGD all rows of
/// a class are equal in every version, and all classes together count the pushes.
class RowClasses {
 public:
  static constexpr std::int64_t kRows = 1000, kWidth = 24, kClasses = 20;

  static std::vector<ShardPiece> pieces() {
    return {{.parameter = 0, .begin = 0, .end = kRows * kWidth, .dtype = DType::kFloat64}};
  }
  Result<Shard::Pushed> push(Shard& shard, std::uint64_t sequence, std::uint64_t which) const {
    std::vector<std::int64_t> indices;
    for (auto r = static_cast<std::int64_t>(which); r < kRows; r += kClasses) indices.push_back(r);
    const PushedPiece piece{
        .rows = {.indices = indices, .row_length = kWidth, .values = ones_.data()}};
    return shard.push({.pieces = {&piece, 1}, .lr = 1, .sequence = sequence});
  }
  static bool is_whole(const std::byte* weights, std::uint64_t version) {
    const auto* w = reinterpret_cast<const double*>(weights);
    double pushes = 0;
    for (std::int64_t i = 0; i < kRows * kWidth; ++i) {
      if (w[i] != w[i / kWidth % kClasses * kWidth]) return false;
    }
    for (std::int64_t c = 0; c < kClasses; ++c) pushes -= w[c * kWidth];
    return pushes == static_cast<double>(version);
  }

 private:
  std::vector<double> ones_ =
      std::vector<double>(static_cast<std::size_t>(kRows / kClasses * kWidth), 1);
};

}  // namespace stormo::server
