// Ranges of slices as boxes of the whole: what ranks save where each has a shard of its slices.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include <torch/torch.h>

#include <stormo/tensor/split.h>
#include <stormo/train/state/slice_pieces.h>

namespace stormo::train {
namespace {

/// Puts a piece where it belongs; counts how often each element has come.
void put(const TensorPiece& piece, const torch::Tensor& whole, const torch::Tensor& times) {
  torch::Tensor part = whole, count = times;
  for (std::size_t d = 0; d < piece.shape.size(); ++d) {
    const auto dim = static_cast<std::int64_t>(d);
    part = part.narrow(dim, piece.box->offsets[d], piece.box->sizes[d]);
    count = count.narrow(dim, piece.box->offsets[d], piece.box->sizes[d]);
  }
  part.copy_(piece.values.view(part.sizes()));
  count.add_(1);
}

TEST(SlicePieces, CoverTheWholeOnceWhereverSlicesAreCut) {
  std::mt19937_64 random(7);
  const auto up_to = [&](std::int64_t n) {
    return 1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  for (int round = 0; round < 300; ++round) {
    const auto dims = static_cast<std::size_t>(up_to(4));
    const int parts = static_cast<int>(up_to(3));
    plan::Split split;
    split.dim = static_cast<int>(up_to(static_cast<std::int64_t>(dims)) - 1);
    split.units = parts + up_to(3) - 1;
    split.blocks = static_cast<int>(up_to(3));
    std::vector<std::int64_t> sizes;
    for (std::size_t d = 0; d < dims; ++d) sizes.push_back(up_to(4));
    sizes[static_cast<std::size_t>(split.dim)] = split.units * split.blocks * up_to(2);
    const torch::Tensor whole = torch::arange(c10::multiply_integers(sizes)).view(sizes);
    const torch::Tensor joined = torch::full_like(whole, -1), times = torch::zeros_like(whole);
    for (int p = 0; p < parts; ++p) {
      const torch::Tensor slice = tensor::slice(whole, split, {p, parts});
      for (std::int64_t begin = 0, end = 0; begin < slice.numel(); begin = end) {
        end = std::min(slice.numel(), begin + up_to(slice.numel()) - 1);  // sometimes nothing
        if (begin == end && up_to(2) == 1) ++end;
        const TensorPiece piece{.name = "weight",
                                .shape = slice.sizes().vec(),
                                .begin = begin,
                                .end = end,
                                .values = slice.flatten().slice(0, begin, end)};
        for (const TensorPiece& each :
             pieces_of_whole(piece, slice.sizes().vec(), sizes, split, {p, parts})) {
          ASSERT_EQ(each.name, "weight");
          ASSERT_EQ(each.shape, sizes);
          put(each, joined, times);
        }
      }
    }
    EXPECT_TRUE(joined.equal(whole)) << "round " << round;
    EXPECT_TRUE(times.eq(1).all().item<bool>()) << "round " << round;
  }
}

}  // namespace
}  // namespace stormo::train
