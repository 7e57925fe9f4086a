#include <stormo/train/state/slice_pieces.h>

#include <cstddef>
#include <utility>

namespace stormo::train {
namespace {

using Sizes = std::vector<std::int64_t>;

/// Divides a range of the elements of a tensor, in C order, into boxes. The elements of each box
/// follow one another.
class Boxes {
 public:
  explicit Boxes(const Sizes& sizes) : sizes_(sizes), within_(sizes.size(), 1) {
    for (std::size_t d = sizes.size() - 1; d > 0; --d) within_[d - 1] = within_[d] * sizes[d];
  }

  std::vector<checkpoint::Box> of(std::int64_t begin, std::int64_t end) {
    out_.clear();
    if (begin < end) add(0, Sizes(sizes_.size()), begin, end);
    return std::move(out_);
  }

 private:
  /// The part in the dimensions from `dim` on, which counts its elements from 0; `at` has the
  /// indices in those before.
  void add(std::size_t dim, Sizes at, std::int64_t begin, std::int64_t end) {
    const std::int64_t within = within_[dim];
    const std::int64_t first = begin / within, last = (end - 1) / within;
    const bool cut_first = begin % within != 0, cut_last = end % within != 0;
    const auto inside = [&](std::int64_t index, std::int64_t from, std::int64_t to) {
      at[dim] = index;
      add(dim + 1, at, from - index * within, to - index * within);
    };
    if (first == last && (cut_first || cut_last)) return inside(first, begin, end);
    if (cut_first) inside(first, begin, (first + 1) * within);
    const std::int64_t whole_from = first + (cut_first ? 1 : 0), whole_to = end / within;
    if (whole_from < whole_to) {
      checkpoint::Box box{at, Sizes(sizes_.size(), 1)};
      box.offsets[dim] = whole_from;
      box.sizes[dim] = whole_to - whole_from;
      for (std::size_t d = dim + 1; d < sizes_.size(); ++d) {
        box.offsets[d] = 0;
        box.sizes[d] = sizes_[d];
      }
      out_.push_back(std::move(box));
    }
    if (cut_last) inside(last, last * within, end);
  }

  Sizes sizes_;
  Sizes within_;  // elements for each index of a dimension
  std::vector<checkpoint::Box> out_;
};

}  // namespace

std::vector<TensorPiece> pieces_of_whole(const TensorPiece& piece, const Sizes& slice,
                                         const Sizes& whole, const plan::Split& split,
                                         const plan::Part& part) {
  const auto dim = static_cast<std::size_t>(split.dim);
  const std::int64_t in_block = whole[dim] / split.blocks;
  const std::int64_t first =
      plan::share(split, part.parts, part.index).begin * (in_block / split.units);
  Sizes blocks = slice;  // its sizes, with a dimension for the blocks
  blocks[dim] /= split.blocks;
  blocks.insert(blocks.begin() + split.dim, split.blocks);
  std::vector<TensorPiece> out;
  std::int64_t done = 0;
  for (const checkpoint::Box& box : Boxes(blocks).of(piece.begin, piece.end)) {
    const std::int64_t count = c10::multiply_integers(box.sizes);
    const torch::Tensor values = piece.values.slice(0, done, done + count).view(box.sizes);
    done += count;
    for (std::int64_t b = 0; b < box.sizes[dim]; ++b) {
      checkpoint::Box of_whole = box;
      of_whole.offsets.erase(of_whole.offsets.begin() + split.dim);
      of_whole.sizes.erase(of_whole.sizes.begin() + split.dim);
      of_whole.offsets[dim] += (box.offsets[dim] + b) * in_block + first;
      out.push_back({.name = piece.name,
                     .shape = whole,
                     .values = values.select(split.dim, b).flatten(),
                     .box = std::move(of_whole)});
    }
  }
  return out;
}

}  // namespace stormo::train
