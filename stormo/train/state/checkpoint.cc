#include <stormo/train/state/checkpoint.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <exception>
#include <memory>
#include <utility>

#include <torch/types.h>

#include <stormo/tensor/memory.h>
#include <stormo/train/state/other_slots.h>

namespace stormo::train {
namespace {

Status foreign(const std::string& what) {
  return invalid_argument("the checkpoint belongs to another model: " + what +
                          "; resume with the model that wrote it, or give another directory");
}

/// "F32 [64, 10]".
std::string form(const std::string& dtype, at::IntArrayRef shape) {
  return fmt::format("{} [{}]", dtype, fmt::join(shape, ", "));
}

Status check_fits(const checkpoint::Manifest& manifest, const TensorMap& tensors) {
  for (const auto& [name, t] : tensors) {
    const auto found = manifest.tensors.find(name);
    if (found == manifest.tensors.end()) return foreign("it has no '" + name + "'");
    const char* dtype = safetensors_name(t.scalar_type());
    if (dtype == nullptr) return invalid_argument("'" + name + "' is of a type that no file holds");
    if (t.sizes() != found->second.shape || dtype != found->second.dtype) {
      return foreign("'" + name + "' is " + form(found->second.dtype, found->second.shape) +
                     ", the model's is " + form(dtype, t.sizes()));
    }
  }
  return ok_status();
}

Status read_tensor(checkpoint::CheckpointReader& reader, const std::string& name,
                   const torch::Tensor& to) {
  if (!tensor::has_memory(to)) {
    return invalid_argument("'" + name + "' has no memory to read into; see model::ValuesLater");
  }
  const torch::NoGradGuard no_grad;
  torch::Tensor target = to.detach();
  const bool in_place = target.is_contiguous() && target.device().is_cpu();
  if (!in_place) target = torch::empty(to.sizes(), to.scalar_type());
  STORMO_RETURN_IF_ERROR(reader.read(name, 0, target.numel(), target.mutable_data_ptr()));
  if (in_place) {
    to.unsafeGetTensorImpl()->bump_version();  // written behind autograd's back
  } else {
    to.detach().copy_(target);
  }
  return ok_status();
}

constexpr std::string_view kOptimizer = "optimizer.";

}  // namespace

bool is_optimizer_state(const std::string& name) { return name.starts_with(kOptimizer); }

std::string optimizer_key(std::string_view slot, const std::string& parameter) {
  return std::string(kOptimizer) + std::string(slot) + "." + parameter;
}

std::string_view optimizer_slot(std::string_view name) {
  name.remove_prefix(kOptimizer.size());
  return name.substr(0, name.find('.'));
}

Status check_names(const TensorMap& tensors) {
  for (const auto& [name, t] : tensors) {
    if (is_optimizer_state(name)) {
      return invalid_argument("'" + name +
                              "': checkpoints keep names that begin with 'optimizer.' for the "
                              "optimizer's state; rename that submodule");
    }
  }
  return ok_status();
}

Status add_pieces(const TensorMap& tensors, std::vector<checkpoint::Piece>& pieces) {
  for (const auto& [name, tensor] : tensors) {
    const TensorPiece whole{
        .name = name, .shape = tensor.sizes().vec(), .end = tensor.numel(), .values = tensor};
    STORMO_RETURN_IF_ERROR(add_piece(whole, pieces));
  }
  return ok_status();
}

Status add_piece(const TensorPiece& part, std::vector<checkpoint::Piece>& pieces) {
  STORMO_ASSIGN_OR_RETURN(const torch::Tensor values, plain_values(part.name, part.values));
  pieces.push_back({.name = part.name,
                    .dtype = safetensors_name(values.scalar_type()),
                    .shape = part.shape,
                    .begin = part.begin,
                    .end = part.end,
                    .data = values.const_data_ptr(),
                    .owner = std::make_shared<const torch::Tensor>(values),
                    .box = part.box});
  return ok_status();
}

Result<torch::Tensor> read_range(checkpoint::CheckpointReader& reader, const std::string& name,
                                 std::int64_t begin, std::int64_t end) {
  const auto found = reader.manifest().tensors.find(name);
  if (found == reader.manifest().tensors.end()) return torch::Tensor();
  const auto type = safetensors_type(found->second.dtype);
  if (!type) return Status(Code::kCorrupt, "'" + name + "' has an unknown dtype");
  torch::Tensor values = torch::empty({end - begin}, *type);
  STORMO_RETURN_IF_ERROR(reader.read(name, begin, end, values.mutable_data_ptr()));
  return values;
}

Status check_same_model(const checkpoint::Manifest& manifest, const TensorMap& tensors) {
  for (const auto& [name, saved] : manifest.tensors) {
    if (is_optimizer_state(name) || tensors.contains(name)) continue;
    return foreign("'" + name + "' is not part of this one");
  }
  return check_fits(manifest, tensors);
}

Status read_into(checkpoint::CheckpointReader& reader, const TensorMap& tensors) {
  STORMO_RETURN_IF_ERROR(check_fits(reader.manifest(), tensors));
  for (const auto& [name, t] : tensors) STORMO_RETURN_IF_ERROR(read_tensor(reader, name, t));
  return ok_status();
}

Status read_all_into(checkpoint::CheckpointReader& reader, const TensorMap& tensors) {
  STORMO_RETURN_IF_ERROR(check_same_model(reader.manifest(), tensors));
  return read_into(reader, tensors);
}

Result<TensorMap> read_optimizer_state(checkpoint::CheckpointReader& reader) {
  TensorMap tensors;
  for (const auto& [name, saved] : reader.manifest().tensors) {
    if (!is_optimizer_state(name) || optimizer_slot(name) == kDelaySlot ||
        optimizer_slot(name) == kResidualSlot) {
      continue;
    }
    const auto type = safetensors_type(saved.dtype);
    if (!type) return Status(Code::kCorrupt, "'" + name + "' has an unknown dtype");
    try {
      torch::Tensor t = torch::empty(saved.shape, *type);
      STORMO_RETURN_IF_ERROR(reader.read(name, 0, t.numel(), t.mutable_data_ptr()));
      tensors.emplace(name, std::move(t));
    } catch (const std::exception&) {  // libtorch's allocator throws
      return Status(Code::kExhausted, "not enough memory for '" + name + "'");
    }
  }
  return tensors;
}

}  // namespace stormo::train
