#include <stormo/train/agreement/broadcast.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sstream>
#include <vector>

#include <torch/utils.h>

#include <stormo/checkpoint/exchange.h>
#include <stormo/tensor/bridge.h>
#include <stormo/tensor/memory.h>

namespace stormo::train {
namespace {

using checkpoint::broadcast_text;
using Tensors = std::map<std::string, torch::Tensor>;

// One line per tensor, in name order: "fc.weight<TAB>10x5".
std::string table_of(const Tensors& tensors) {
  std::ostringstream out;
  for (const auto& [name, t] : tensors) {
    out << name << '\t';
    for (std::int64_t d = 0; d < t.dim(); ++d) out << (d ? "x" : "") << t.size(d);
    out << '\n';
  }
  return out.str();
}

// Rank 0's table: names with the type and shape to allocate for each.
Tensors allocate_like(const std::string& table, const std::vector<torch::ScalarType>& types) {
  Tensors out;
  std::istringstream lines(table);
  std::string line;
  for (std::size_t i = 0; std::getline(lines, line); ++i) {
    std::istringstream fields(line);
    std::string name, shape, size;
    std::getline(fields, name, '\t');
    std::getline(fields, shape, '\t');
    std::vector<std::int64_t> sizes;
    std::istringstream dims(shape);
    while (std::getline(dims, size, 'x')) sizes.push_back(std::stoll(size));
    out.emplace(name, torch::empty(sizes, types.at(i)));
  }
  return out;
}

}  // namespace

Status broadcast_values(comm::Communicator& world, const Tensors& tensors, Rank root) {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> dense;
  std::vector<comm::Buffer> buffers;
  for (const auto& [name, t] : tensors) {
    if (!tensor::has_memory(t)) {
      return invalid_argument(
          "'" + name +
          "' has no values: call Chain::make_values() first, or make the module "
          "again after a run in which ranks had parts of it");
    }
    dense.push_back(t.detach().contiguous());
    // bytes: element types that cannot be reduced pass too
    if (t.numel() > 0) buffers.push_back(tensor::bytes_of(dense.back()));
  }
  if (buffers.empty()) return {};
  STORMO_RETURN_IF_ERROR(world.broadcast(buffers, root));
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

std::vector<comm::Fact> tensor_facts(const std::map<std::string, torch::Tensor>& tensors) {
  std::vector<comm::Fact> facts;
  for (const auto& [name, t] : tensors) {
    std::string value =
        fmt::format("{} [{}]", c10::toString(t.scalar_type()), fmt::join(t.sizes(), ", "));
    if (!t.is_contiguous()) value += fmt::format(" strides [{}]", fmt::join(t.strides(), ", "));
    if (t.is_leaf() && t.requires_grad()) value += " trained";
    facts.push_back({"model " + name, std::move(value)});
  }
  return facts;
}

Status check_same_tensors(comm::Communicator& world, const Tensors& tensors) {
  return comm::check_agreement(world, tensor_facts(tensors));
}

}  // namespace stormo::train
