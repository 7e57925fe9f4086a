#include <stormo/data/npy.h>

#include <string_view>
#include <utility>

#include <stormo/base/check.h>
#include <stormo/data/mapped_file.h>
#include <stormo/data/npy_header.h>

namespace stormo::data {
namespace {

torch::ScalarType scalar_type(std::string_view dtype) {
  if (dtype == "u1") return torch::kUInt8;
  if (dtype == "i1") return torch::kInt8;
  if (dtype == "i2") return torch::kInt16;
  if (dtype == "i4") return torch::kInt32;
  if (dtype == "i8") return torch::kInt64;
  if (dtype == "f2") return torch::kHalf;
  if (dtype == "f4") return torch::kFloat32;
  STORMO_CHECK(dtype == "f8", "the header was checked");
  return torch::kFloat64;
}

}  // namespace

Result<torch::Tensor> load_npy(const std::string& path) {
  STORMO_ASSIGN_OR_RETURN(auto file, MappedFile::open(path));
  const Result<NpyHeader> header = parse_npy_header(file->bytes());
  if (!header.ok()) return header.status().within(path);
  void* elements = const_cast<std::byte*>(file->bytes().data()) + header->begin;
  const auto release = [file = std::move(file)](void*) {};  // the tensor keeps the mapping
  return torch::from_blob(elements, header->shape, release, scalar_type(header->dtype));
}

}  // namespace stormo::data
