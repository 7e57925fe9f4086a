#include <stormo/checkpoint/format/box.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace stormo::checkpoint {
namespace {

constexpr std::size_t kMaxScatteredBoxes = 1000;

/// The boxes of [begin, end) of the sub-tensor that `fixed` indices of the first dimensions choose.
void cut(Shape shape, std::vector<std::int64_t>& fixed, std::int64_t begin, std::int64_t end,
         std::vector<Box>& out) {
  if (begin == end) return;
  const auto add_rows = [&](std::int64_t first, std::int64_t count) {
    Box box{fixed, std::vector<std::int64_t>(fixed.size(), 1)};
    if (fixed.size() < shape.size()) {
      box.offsets.push_back(first);
      box.sizes.push_back(count);
      box.offsets.resize(shape.size(), 0);
      box.sizes.insert(box.sizes.end(),
                       shape.begin() + static_cast<std::ptrdiff_t>(box.sizes.size()), shape.end());
    }
    out.push_back(std::move(box));
  };
  const std::size_t dim = fixed.size();
  if (dim == shape.size()) return add_rows(0, 1);
  const std::int64_t row = *num_elements(shape.subspan(dim + 1));
  const auto cut_row = [&](std::int64_t index, std::int64_t from, std::int64_t to) {
    fixed.push_back(index);
    cut(shape, fixed, from, to, out);
    fixed.pop_back();
  };
  const std::int64_t first = begin / row, last = end / row;
  const std::int64_t head = begin % row, tail = end % row;
  if (head != 0 && first == last) return cut_row(first, head, tail);
  const std::int64_t whole = first + (head != 0 ? 1 : 0);
  if (head != 0) cut_row(first, head, row);
  if (last > whole) add_rows(whole, last - whole);
  if (tail != 0) cut_row(last, 0, tail);
}

/// How the elements of a box lie: `count` runs of `length` elements each.
struct Layout {
  std::size_t outer = 0;  ///< dimensions that tell the runs apart
  std::int64_t length = 1;
  std::int64_t count = 1;
};

Layout layout_of(const Box& box, Shape shape) {
  std::size_t outer = shape.size();
  std::int64_t length = 1;
  bool whole = true;  // all inner dimensions are
  while (outer > 0 && whole) {
    --outer;
    length *= box.sizes[outer];
    whole = box.sizes[outer] == shape[outer];
  }
  std::int64_t count = 1;
  for (std::size_t d = 0; d < outer; ++d) count *= box.sizes[d];
  return {outer, length, count};
}

/// Index in the tensor of the first element of run `index`.
std::int64_t begin_of_run(const Box& box, Shape shape, const Layout& layout, std::int64_t index) {
  std::int64_t place = 0, stride = 1;
  for (std::size_t d = shape.size(); d-- > 0;) {
    std::int64_t at = box.offsets[d];
    if (d < layout.outer) {
      at += index % box.sizes[d];
      index /= box.sizes[d];
    }
    place += at * stride;
    stride *= shape[d];
  }
  return place;
}

bool overlap(const Box& a, const Box& b) {
  for (std::size_t d = 0; d < a.sizes.size(); ++d) {
    if (a.offsets[d] >= b.offsets[d] + b.sizes[d] || b.offsets[d] >= a.offsets[d] + a.sizes[d]) {
      return false;
    }
  }
  return true;
}

bool none_overlap(const std::vector<Box>& boxes) {
  if (boxes.size() > kMaxScatteredBoxes) return false;
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (overlap(boxes[i], boxes[j])) return false;
    }
  }
  return true;
}

}  // namespace

std::optional<std::int64_t> num_elements(Shape shape) {
  std::int64_t product = 1;
  bool empty = false;
  for (const std::int64_t size : shape) {
    if (size < 0) return std::nullopt;
    empty = empty || size == 0;
    const std::int64_t factor = std::max<std::int64_t>(size, 1);
    if (product > std::numeric_limits<std::int64_t>::max() / factor) return std::nullopt;
    product *= factor;
  }
  return empty ? 0 : product;
}

bool is_inside(const Box& box, Shape shape) {
  if (box.offsets.size() != shape.size() || box.sizes.size() != shape.size()) return false;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const std::int64_t offset = box.offsets[d], size = box.sizes[d];
    if (offset < 0 || size < 0 || offset > shape[d] || size > shape[d] - offset) return false;
  }
  return true;
}

std::vector<Box> boxes_of_range(Shape shape, std::int64_t begin, std::int64_t end) {
  std::vector<Box> boxes;
  if (*num_elements(shape) == 0) {
    boxes.push_back({std::vector<std::int64_t>(shape.size(), 0), {shape.begin(), shape.end()}});
    return boxes;
  }
  std::vector<std::int64_t> fixed;
  cut(shape, fixed, begin, end, boxes);
  return boxes;
}

void for_runs(const Box& box, Shape shape, std::int64_t begin, std::int64_t end,
              const std::function<void(const Run&)>& f) {
  const Layout layout = layout_of(box, shape);
  if (layout.length == 0) return;
  const auto place = [&](std::int64_t i) { return begin_of_run(box, shape, layout, i); };
  // Runs ascend: find the first one that ends after `begin`.
  std::int64_t low = 0, high = layout.count;
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (place(middle) + layout.length > begin) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  for (; low < layout.count; ++low) {
    const std::int64_t start = place(low);
    if (start >= end) return;
    const std::int64_t from = std::max(start, begin);
    const std::int64_t to = std::min(start + layout.length, end);
    f({from, low * layout.length + (from - start), to - from});
  }
}

bool cover_exactly(const std::vector<Box>& boxes, Shape shape) {
  const std::int64_t all = *num_elements(shape);
  std::int64_t sum = 0;
  bool flat = true;
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
  for (const Box& box : boxes) {
    const Layout layout = layout_of(box, shape);
    const std::int64_t volume = *num_elements(box.sizes);
    if (volume > all - sum) return false;
    sum += volume;
    flat = flat && layout.count <= 1;
    if (volume > 0) ranges.emplace_back(begin_of_run(box, shape, layout, 0), volume);
  }
  if (sum != all || boxes.empty()) return false;
  if (!flat) return none_overlap(boxes);
  std::sort(ranges.begin(), ranges.end());
  std::int64_t covered = 0;
  for (const auto& [begin, count] : ranges) {
    if (begin != covered) return false;
    covered += count;
  }
  return true;
}

}  // namespace stormo::checkpoint
