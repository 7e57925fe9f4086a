#include <stormo/train/state/safetensors.h>

#include <torch/types.h>

#include <array>
#include <optional>
#include <utility>

#include <stormo/checkpoint/file/safetensors_file.h>
#include <stormo/tensor/memory.h>

namespace stormo::train {
namespace {

using checkpoint::FileReader;
using checkpoint::SafetensorsEntry;

constexpr std::array<std::pair<const char*, torch::ScalarType>, 16> kDTypes = {
    {{"BOOL", torch::kBool},
     {"U8", torch::kUInt8},
     {"I8", torch::kInt8},
     {"F8_E5M2", torch::kFloat8_e5m2},
     {"F8_E4M3", torch::kFloat8_e4m3fn},
     {"I16", torch::kInt16},
     {"U16", torch::kUInt16},
     {"F16", torch::kFloat16},
     {"BF16", torch::kBFloat16},
     {"I32", torch::kInt32},
     {"U32", torch::kUInt32},
     {"F32", torch::kFloat32},
     {"F64", torch::kFloat64},
     {"I64", torch::kInt64},
     {"U64", torch::kUInt64},
     {"C64", torch::kComplexFloat}}};

Result<TensorMap> read_tensors(const FileReader& file) {
  const auto read_at = [&](std::uint64_t offset, void* data, std::size_t bytes) {
    return file.read(offset, data, bytes);
  };
  STORMO_ASSIGN_OR_RETURN(const checkpoint::SafetensorsLayout layout,
                          checkpoint::read_safetensors_layout(file.size(), read_at));
  TensorMap tensors;
  for (const SafetensorsEntry& e : layout.header.entries) {
    const auto type = safetensors_type(e.dtype);
    if (!type) return Status(Code::kCorrupt, "unknown dtype " + e.dtype);
    torch::Tensor t = torch::empty(e.shape, *type);
    const auto bytes = static_cast<std::size_t>(e.end - e.begin);
    STORMO_RETURN_IF_ERROR(file.read(layout.data_begin + e.begin, t.mutable_data_ptr(), bytes));
    STORMO_RETURN_IF_ERROR(checkpoint::check_values(e.dtype, t.const_data_ptr(), bytes)
                               .within("tensor '" + e.name + "'"));
    tensors.emplace(e.name, std::move(t));
  }
  return tensors;
}

}  // namespace

const char* safetensors_name(torch::ScalarType type) {
  for (const auto& [name, known] : kDTypes) {
    if (known == type) return name;
  }
  return nullptr;
}

std::optional<torch::ScalarType> safetensors_type(const std::string& name) {
  for (const auto& [known, type] : kDTypes) {
    if (known == name) return type;
  }
  return std::nullopt;
}

Result<torch::Tensor> plain_values(const std::string& name, const torch::Tensor& tensor) {
  if (!tensor.defined()) return invalid_argument("tensor '" + name + "' is undefined");
  if (tensor.layout() != torch::kStrided || safetensors_name(tensor.scalar_type()) == nullptr) {
    return invalid_argument("tensor '" + name + "' (" + tensor.toString() +
                            ") cannot be stored in a safetensors file");
  }
  if (!tensor::has_memory(tensor)) {
    return invalid_argument(
        "'" + name +
        "' has no values here: ranks have parts of it; save by "
        "RunCheckpoint(world, fsdp, optimizer, folder), or inside of gathered()");
  }
  return tensor.detach().resolve_conj().resolve_neg().to(torch::kCPU).contiguous();
}

Result<TensorMap> read_safetensors(const std::string& path) {
  FileReader file;
  STORMO_RETURN_IF_ERROR(file.open(path));
  try {
    Result<TensorMap> tensors = read_tensors(file);
    if (!tensors.ok()) return tensors.status().within(path);
    return tensors;
  } catch (const std::exception&) {  // libtorch's allocator throws
    return Status(Code::kExhausted, path + ": not enough memory for its tensors");
  }
}

}  // namespace stormo::train
