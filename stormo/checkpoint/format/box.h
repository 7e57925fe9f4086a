#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace stormo::checkpoint {

/// A rectangular part of a tensor: sizes[d] elements from offsets[d] on, in every dimension d.
struct Box {
  std::vector<std::int64_t> offsets;
  std::vector<std::int64_t> sizes;
  bool operator==(const Box&) const = default;
};

using Shape = std::span<const std::int64_t>;

/// Number of elements of a tensor of this shape, 1 without dimensions; empty when a size is
/// negative or a product of sizes exceeds 2^63 - 1 (with sizes of 0 counted as 1, as in strides).
std::optional<std::int64_t> num_elements(Shape shape);

/// Whether `box` is inside a tensor of this shape. num_elements() must not be empty for either.
bool is_inside(const Box& box, Shape shape);

/// The elements [begin, end) of a tensor in C order as boxes, in this order, at most
/// 2 * dimensions - 1 of them; the whole tensor, when it has no elements, is one box.
/// 0 <= begin <= end <= num_elements(shape).
std::vector<Box> boxes_of_range(Shape shape, std::int64_t begin, std::int64_t end);

/// Elements of a box that are contiguous in the tensor and in the box.
struct Run {
  std::int64_t in_tensor = 0;  ///< index of the first one in the tensor, in C order
  std::int64_t in_box = 0;     ///< and in the box
  std::int64_t count = 0;
};

/// Calls `f` for the runs of `box` that overlap [begin, end) of the tensor, reduced to this range,
/// in ascending order. Runs outside the range cost no time.
void for_runs(const Box& box, Shape shape, std::int64_t begin, std::int64_t end,
              const std::function<void(const Run&)>& f);

/// Whether the boxes, all inside, cover a tensor of this shape exactly once. O(n log n) for boxes
/// that are contiguous ranges; at most 1000 other boxes are allowed.
bool cover_exactly(const std::vector<Box>& boxes, Shape shape);

}  // namespace stormo::checkpoint
