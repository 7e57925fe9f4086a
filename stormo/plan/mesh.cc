#include <stormo/plan/mesh.h>

#include <algorithm>
#include <utility>

#include <stormo/base/check.h>
#include <stormo/plan/hash.h>
#include <stormo/plan/mesh_text.h>

namespace stormo::plan {

int Mesh::size() const {
  std::int64_t size = 1;
  for (const Axis& axis : axes) {
    size *= axis.size;
    STORMO_CHECK(axis.size >= 1 && size <= kMaxRanks, "Mesh: size out of range");
  }
  return static_cast<int>(size);
}

int Mesh::find(std::string_view axis) const {
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (axes[i].name == axis) return static_cast<int>(i);
  }
  return -1;
}

std::vector<int> Mesh::coordinates(Rank rank) const {
  STORMO_CHECK(rank >= 0 && rank < size(), "Mesh: rank outside of the mesh");
  std::vector<int> out(axes.size());
  for (std::size_t i = axes.size(); i-- > 0;) {
    out[i] = rank % axes[i].size;
    rank /= axes[i].size;
  }
  return out;
}

std::vector<Rank> Mesh::group(Rank rank, std::string_view axis) const {
  const int index = find(axis);
  STORMO_CHECK(index >= 0, "Mesh: no such axis");
  const auto at = static_cast<std::size_t>(index);
  int stride = 1;
  for (std::size_t i = at + 1; i < axes.size(); ++i) stride *= axes[i].size;
  const Rank first = rank - coordinates(rank)[at] * stride;
  std::vector<Rank> out;
  for (int i = 0; i < axes[at].size; ++i) out.push_back(first + i * stride);
  return out;
}

std::vector<Rank> Mesh::group(Rank rank, std::span<const std::string> over) const {
  std::vector<Rank> out{rank};
  for (const std::string& axis : over) {
    std::vector<Rank> more;
    for (const Rank r : out) {
      const std::vector<Rank> along = group(r, axis);
      more.insert(more.end(), along.begin(), along.end());
    }
    out = std::move(more);
  }
  std::ranges::sort(out);
  return out;
}

void append_axes(std::string& out, const Mesh& m) {
  for (const Axis& axis : m.axes) {
    out += ' ';
    append_word(out, axis.name);
    out += '=';
    append_integer(out, axis.size);
  }
  out += '\n';
}

Mesh read_axes(TextReader& in) {
  Mesh m;
  std::int64_t size = 1;
  while (!in.at_line_end()) {
    Axis axis{in.word("an axis"), 1};
    if (m.find(axis.name) >= 0) in.fail_at_token("axis '" + axis.name + "' is there twice");
    in.expect("=");
    axis.size = in.small_integer("the axis' size", 1, kMaxRanks);
    size *= axis.size;
    if (size > kMaxRanks) {
      in.fail_at_token("the mesh has more than " + std::to_string(kMaxRanks) + " ranks");
    }
    m.axes.push_back(std::move(axis));
    if (m.axes.size() > static_cast<std::size_t>(kMaxAxes)) in.fail_at_token("too many axes");
  }
  return m;
}

std::string to_text(const Mesh& m) {
  std::string out = "mesh v1";
  append_axes(out, m);
  return out;
}

std::uint64_t hash(const Mesh& m) {
  StableHash h;
  h.add("mesh v1");
  for (const Axis& axis : m.axes) {
    h.add(axis.name);
    h.add(static_cast<std::uint64_t>(axis.size));
  }
  return h.value();
}

}  // namespace stormo::plan
