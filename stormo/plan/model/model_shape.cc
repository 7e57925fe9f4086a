#include <stormo/plan/model/model_shape.h>

#include <algorithm>
#include <numeric>

namespace stormo::plan {

Share share(std::int64_t units, int parts, int index) {
  // without the product, which may be too large
  const auto bound = [=](int i) { return units / parts * i + units % parts * i / parts; };
  return {bound(index), bound(index + 1)};
}

Share share(const Split& split, int parts, int index) {
  // check() refuses counts of other ranks
  if (std::ssize(split.counts) != parts) return share(split.units, parts, index);
  const auto mine = split.counts.begin() + index;
  const std::int64_t begin = std::accumulate(split.counts.begin(), mine, std::int64_t{0});
  return {begin, begin + *mine};
}

bool counts_fit(const Split& split, int parts) {
  std::int64_t left = split.units;
  for (const std::int64_t n : split.counts) {
    if (n < 0 || n > left) return false;
    left -= n;
  }
  return left == 0 && std::ssize(split.counts) == parts;
}

std::int64_t rows_out(const Window& w, std::int64_t rows) {
  const std::int64_t room = rows + 2 * std::int64_t{w.padding} - w.kernel;
  return room < 0 ? 0 : room / w.stride + 1;
}

Share rows_read(const Window& w, std::int64_t rows, int parts, int index) {
  const Share out = share(rows_out(w, rows), parts, index);
  const Share read{out.begin * w.stride - w.padding,
                   (out.end - 1) * w.stride - w.padding + w.kernel};
  return common(read, {0, rows});
}

Share common(const Share& a, const Share& b) {
  const std::int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

std::array<std::pair<const char*, const std::vector<std::int64_t>*>, 3> named(
    const InnerSums& sums) {
  return {{{"sums", &sums.forward}, {"gradient_sums", &sums.backward}, {"loss_sums", &sums.loss}}};
}

ModelShape without_unused_forms(ModelShape model, const ParallelForms& how) {
  for (SegmentShape& s : model.segments) {
    if (!how.slices && !how.positions) s.heads = 0;
    if (!how.positions) s.positions = s.keys = 0;
    if (!how.places) {
      s.windows.clear();
      s.norms.clear();
      s.spatial_all_reduce = 0;
    }
    for (ParameterShape& p : s.parameters) {
      if (!how.factors) p.rows = 0;
      if (!how.slices) p.split = {};
    }
    if (how.slices) continue;
    s.sums = {};
    s.splits_output = false;
    s.split_windows.clear();
    s.state_crossings.clear();
  }
  return model;
}

int segments_of_places(const ModelShape& model) {
  const auto last = std::ranges::find_if(
      model.segments, [](const SegmentShape& s) { return s.spatial_all_reduce != 0; });
  return last == model.segments.end() ? 0 : static_cast<int>(last - model.segments.begin()) + 1;
}

int num_parameters(const ModelShape& model) {
  std::size_t count = 0;
  for (const SegmentShape& s : model.segments) count += s.parameters.size();
  return static_cast<int>(count);
}

std::int64_t num_elements(const SegmentShape& segment) {
  std::int64_t count = 0;
  for (const ParameterShape& p : segment.parameters) count += p.elements;
  return count;
}

std::int64_t num_elements(const ModelShape& model) {
  std::int64_t count = 0;
  for (const SegmentShape& s : model.segments) count += num_elements(s);
  return count;
}

Range parameters_of(const ModelShape& model, Range segments) {
  int first = 0, count = 0;
  for (int s = 0; s <= segments.last; ++s) {
    const int own = static_cast<int>(model.segments[static_cast<std::size_t>(s)].parameters.size());
    (s < segments.first ? first : count) += own;
  }
  return {first, first + count - 1};
}

std::vector<const ParameterShape*> flatten(const ModelShape& model) {
  std::vector<const ParameterShape*> out;
  for (const SegmentShape& s : model.segments) {
    for (const ParameterShape& p : s.parameters) out.push_back(&p);
  }
  return out;
}

std::vector<std::vector<int>> parameters_read(const ModelShape& model) {
  std::vector<std::vector<int>> out;
  int next = 0;
  for (const SegmentShape& s : model.segments) {
    std::vector<int> read = s.borrowed;
    for (std::size_t i = 0; i < s.parameters.size(); ++i) read.push_back(next++);
    std::ranges::sort(read);
    out.push_back(std::move(read));
  }
  return out;
}

}  // namespace stormo::plan
