#include <stormo/data/npy.h>

#include <exception>
#include <string_view>
#include <utility>

#include <stormo/base/check.h>
#include <stormo/base/npy_header.h>

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

Result<NpyArray> NpyArray::open(const std::string& path) {
  NpyArray array;
  STORMO_ASSIGN_OR_RETURN(array.file_, DataFile::open(path));
  STORMO_ASSIGN_OR_RETURN(const std::string front, array.file_->read_front(kMaxNpyFront));
  Result<NpyHeader> header = parse_npy_header(std::as_bytes(std::span(front)), array.file_->size());
  if (!header.ok()) return header.status().within(path);
  array.shape_ = std::move(header->shape);
  array.dtype_ = scalar_type(header->dtype);
  array.begin_ = header->begin;
  return array;
}

Status NpyArray::read(std::int64_t first, std::span<std::byte> out) const {
  const auto width = static_cast<std::uint64_t>(c10::elementSize(dtype_));
  return file_->read(begin_ + static_cast<std::uint64_t>(first) * width, out);
}

Result<torch::Tensor> NpyArray::load() const {
  try {
    const torch::Tensor all = torch::empty(shape_, dtype_);
    STORMO_RETURN_IF_ERROR(
        read(0, {static_cast<std::byte*>(all.mutable_data_ptr()), all.nbytes()}));
    return all;
  } catch (const std::exception&) {  // libtorch's allocator throws
    return Status(Code::kExhausted, "not enough memory for the array");
  }
}

}  // namespace stormo::data
