#include <stormo/train/broadcast.h>

#include <sstream>
#include <vector>

#include <torch/utils.h>

#include <stormo/base/rng.h>
#include <stormo/checkpoint/exchange.h>

namespace stormo::train {
namespace {

using checkpoint::broadcast_text;
using Tensors = std::map<std::string, torch::Tensor>;

// A broadcast moves bytes and never computes, so element types that cannot be reduced pass too.
comm::Buffer bytes_of(void* data, std::size_t bytes) {
  return {data, static_cast<std::int64_t>(bytes), DType::kUInt8};
}

// One line per tensor, in name order: "fc.weight<TAB>Float<TAB>10x5<TAB>5,1".
std::string table_of(const Tensors& tensors) {
  std::ostringstream out;
  for (const auto& [name, t] : tensors) {
    out << name << '\t' << torch::toString(t.scalar_type()) << '\t';
    for (std::int64_t d = 0; d < t.dim(); ++d) out << (d ? "x" : "") << t.size(d);
    out << '\t';
    for (std::int64_t d = 0; d < t.dim(); ++d) out << (d ? "," : "") << t.stride(d);
    out << '\n';
  }
  return out.str();
}

std::string readable(std::string line) {
  for (char& c : line) {
    if (c == '\t') c = ' ';
  }
  return line.empty() ? "nothing" : "'" + line + "'";
}

// The first line in which two tables differ, as "rank 0 has ..., rank 2 has ...".
std::string first_difference(const std::string& a, const std::string& b, Rank rank_of_b) {
  std::istringstream lines_a(a), lines_b(b);
  std::string line_a, line_b;
  do {
    line_a.clear();
    line_b.clear();
    std::getline(lines_a, line_a);
    std::getline(lines_b, line_b);
  } while (line_a == line_b && (lines_a || lines_b));
  return "rank 0 has " + readable(line_a) + ", rank " + std::to_string(rank_of_b) + " has " +
         readable(line_b) + " (name, type, shape, strides)";
}

// Rank 0's table: names with the type and shape to allocate for each.
Tensors allocate_like(const std::string& table, const std::vector<torch::ScalarType>& types) {
  Tensors out;
  std::istringstream lines(table);
  std::string line;
  for (std::size_t i = 0; std::getline(lines, line); ++i) {
    std::istringstream fields(line);
    std::string name, type, shape, size;
    std::getline(fields, name, '\t');
    std::getline(fields, type, '\t');
    std::getline(fields, shape, '\t');
    std::vector<std::int64_t> sizes;
    std::istringstream dims(shape);
    while (std::getline(dims, size, 'x')) sizes.push_back(std::stoll(size));
    out.emplace(name, torch::empty(sizes, types.at(i)));
  }
  return out;
}

}  // namespace

Status broadcast_values(comm::Communicator& world, const Tensors& tensors) {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> dense;
  std::vector<comm::Buffer> buffers;
  for (const auto& [name, t] : tensors) {
    dense.push_back(t.detach().contiguous());
    if (t.numel() > 0) buffers.push_back(bytes_of(dense.back().mutable_data_ptr(), t.nbytes()));
  }
  if (buffers.empty()) return {};
  STORMO_RETURN_IF_ERROR(world.broadcast(buffers, 0));
  std::size_t i = 0;
  for (const auto& [name, t] : tensors) {
    const torch::Tensor& received = dense[i++];
    if (received.const_data_ptr() == t.const_data_ptr()) {
      t.unsafeGetTensorImpl()->bump_version();  // written behind autograd's back
    } else {
      t.detach().copy_(received);
    }
  }
  return {};
}

Status broadcast_tensors(comm::Communicator& world, Tensors& tensors) {
  std::string table = table_of(tensors);
  std::string types;
  for (const auto& [name, t] : tensors) types.push_back(static_cast<char>(t.scalar_type()));
  STORMO_RETURN_IF_ERROR(broadcast_text(world, table));
  STORMO_RETURN_IF_ERROR(broadcast_text(world, types));
  if (world.rank() != 0) {
    std::vector<torch::ScalarType> element_types;
    for (const char t : types) element_types.push_back(static_cast<torch::ScalarType>(t));
    tensors = allocate_like(table, element_types);
  }
  return broadcast_values(world, tensors);
}

Status check_same_tensors(comm::Communicator& world, const Tensors& tensors) {
  const std::string table = table_of(tensors);
  auto mine = static_cast<std::int64_t>(fnv1a(table));
  std::vector<std::int64_t> all(static_cast<std::size_t>(world.size()));
  STORMO_RETURN_IF_ERROR(
      world.all_gather(comm::Buffer{&mine, 1, DType::kInt64}, comm::buffer_of(std::span(all))));
  for (Rank r = 1; r < world.size(); ++r) {
    if (all[static_cast<std::size_t>(r)] == all[0]) continue;
    std::string first = table, other = table;
    STORMO_RETURN_IF_ERROR(broadcast_text(world, first, 0));
    STORMO_RETURN_IF_ERROR(broadcast_text(world, other, r));
    return invalid_argument(
        "the ranks hold different models: " + first_difference(first, other, r) +
        "; build the same module on every rank");
  }
  return {};
}

}  // namespace stormo::train
