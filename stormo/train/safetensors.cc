#include <stormo/train/safetensors.h>

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <utility>

#include <stormo/train/safetensors_header.h>

namespace stormo::train {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

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

const char* name_of(torch::ScalarType type) {
  for (const auto& [name, known] : kDTypes) {
    if (known == type) return name;
  }
  return nullptr;
}

std::optional<torch::ScalarType> type_of(const std::string& name) {
  for (const auto& [known, type] : kDTypes) {
    if (known == name) return type;
  }
  return std::nullopt;
}

/// The tensor's values as plain memory in C order on the host.
Result<torch::Tensor> plain(const std::string& name, const torch::Tensor& tensor) {
  if (!tensor.defined()) return invalid_argument("tensor '" + name + "' is undefined");
  if (tensor.layout() != torch::kStrided || name_of(tensor.scalar_type()) == nullptr) {
    return invalid_argument("tensor '" + name + "' (" + tensor.toString() +
                            ") cannot be stored in a safetensors file");
  }
  return tensor.detach().resolve_conj().resolve_neg().to(torch::kCPU).contiguous();
}

Status write_file(FileWriter& file, const SafetensorsHeader& header, std::string_view json,
                  const TensorMap& plain_tensors) {
  const std::uint64_t length = json.size();
  STORMO_RETURN_IF_ERROR(file.write(&length, sizeof(length)));
  STORMO_RETURN_IF_ERROR(file.write(json));
  for (const SafetensorsEntry& e : header.entries) {
    const torch::Tensor& t = plain_tensors.at(e.name);
    STORMO_RETURN_IF_ERROR(file.write(t.const_data_ptr(), static_cast<std::size_t>(t.nbytes())));
  }
  return ok_status();
}

Result<SafetensorsHeader> read_header(const FileReader& file) {
  std::uint64_t length = 0;
  if (file.size() < sizeof(length)) return Status(Code::kCorrupt, "too short for a header");
  STORMO_RETURN_IF_ERROR(file.read(0, &length, sizeof(length)));
  if (length > kMaxSafetensorsHeaderBytes) {
    return Status(Code::kCorrupt, "header longer than 16 MiB; not a safetensors file?");
  }
  if (length > file.size() - sizeof(length)) return Status(Code::kCorrupt, "header is cut short");
  std::string json(static_cast<std::size_t>(length), '\0');
  STORMO_RETURN_IF_ERROR(file.read(sizeof(length), json.data(), json.size()));
  return parse_safetensors_header(json, file.size() - sizeof(length) - length);
}

/// Other values than 0 and 1 in a bool are undefined behaviour for whoever reads it.
bool is_valid_bool(const torch::Tensor& t) {
  const auto* bytes = static_cast<const std::uint8_t*>(t.const_data_ptr());
  return std::all_of(bytes, bytes + t.numel(), [](std::uint8_t b) { return b <= 1; });
}

Result<TensorMap> read_tensors(const FileReader& file) {
  STORMO_ASSIGN_OR_RETURN(const SafetensorsHeader header, read_header(file));
  const std::uint64_t data_bytes = header.entries.empty() ? 0 : header.entries.back().end;
  const std::uint64_t data_begin = file.size() - data_bytes;
  TensorMap tensors;
  for (const SafetensorsEntry& e : header.entries) {
    const auto type = type_of(e.dtype);
    if (!type) return Status(Code::kCorrupt, "unknown dtype " + e.dtype);
    torch::Tensor t = torch::empty(e.shape, *type);
    STORMO_RETURN_IF_ERROR(file.read(data_begin + e.begin, t.mutable_data_ptr(),
                                     static_cast<std::size_t>(e.end - e.begin)));
    if (*type == torch::kBool && !is_valid_bool(t)) {
      return Status(Code::kCorrupt, "tensor '" + e.name + "': a bool that is neither 0 nor 1");
    }
    tensors.emplace(e.name, std::move(t));
  }
  return tensors;
}

}  // namespace

Result<FileDigest> write_safetensors(const std::string& path, const TensorMap& tensors,
                                     const std::map<std::string, std::string>& metadata) {
  SafetensorsHeader header;
  header.metadata = metadata;
  TensorMap plain_tensors;
  for (const auto& [name, tensor] : tensors) {
    STORMO_ASSIGN_OR_RETURN(torch::Tensor t, plain(name, tensor));
    if (name == "__metadata__") return invalid_argument("'__metadata__' cannot name a tensor");
    header.entries.push_back(
        {.name = name, .dtype = name_of(t.scalar_type()), .shape = t.sizes().vec()});
    plain_tensors.emplace(name, std::move(t));
  }
  STORMO_ASSIGN_OR_RETURN(const std::string json, format_safetensors_header(header));
  FileWriter file;
  STORMO_RETURN_IF_ERROR(file.create(path));
  STORMO_RETURN_IF_ERROR(write_file(file, header, json, plain_tensors));
  return file.finish();
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
