#include <stormo/train/agreement/broadcast.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <vector>

#include <torch/utils.h>

#include <stormo/checkpoint/exchange.h>
#include <stormo/tensor/bridge.h>
#include <stormo/tensor/memory.h>
#include <stormo/transport/call/fields.h>

namespace stormo::train {
namespace {

using checkpoint::broadcast_text;
using Tensors = std::map<std::string, torch::Tensor>;

/// What must be known of a tensor to allocate it.
struct TensorForm {
  std::string name;
  std::int32_t type = 0;
  std::vector<std::int64_t> sizes;
};
void fields(auto& visit, transport::Like<TensorForm> auto& form) {
  visit("form of a tensor", form.name, form.type, form.sizes);
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
  std::vector<TensorForm> forms;
  for (const auto& [name, t] : tensors)
    forms.push_back({name, static_cast<std::int32_t>(t.scalar_type()), t.sizes().vec()});
  std::string text = transport::encode(forms);
  STORMO_RETURN_IF_ERROR(broadcast_text(world, text));
  if (world.rank() != 0) {
    STORMO_ASSIGN_OR_RETURN(forms, transport::decode<std::vector<TensorForm>>("tensors", text));
    tensors.clear();
    for (const TensorForm& f : forms)
      tensors[f.name] = torch::empty(f.sizes, static_cast<torch::ScalarType>(f.type));
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
