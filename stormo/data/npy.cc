#include <stormo/data/npy.h>

#include <algorithm>
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
  STORMO_ASSIGN_OR_RETURN(std::string front, array.file_->read_front(kNpyLengthBytes));
  const std::size_t header_bytes = npy_front_bytes(std::as_bytes(std::span(front)));
  STORMO_ASSIGN_OR_RETURN(front, array.file_->read_front(header_bytes));
  Result<NpyHeader> header = parse_npy_header(std::as_bytes(std::span(front)), array.file_->size());
  if (!header.ok()) return header.status().within(path);
  array.shape_ = std::move(header->shape);
  array.dtype_ = scalar_type(header->dtype);
  array.begin_ = header->begin;
  return array;
}

std::int64_t NpyArray::sample_elements() const {
  return shape_.size() < 2 ? 0 : c10::multiply_integers(shape_.begin() + 1, shape_.end());
}

NpyArray NpyArray::columns(std::int64_t first, std::int64_t count) const {
  STORMO_CHECK(shape_.size() >= 2 && row_ == 0, "columns of a whole array");
  NpyArray out = *this;
  out.row_ = c10::multiply_integers(shape_.begin() + 1, shape_.end());
  STORMO_CHECK(first >= 0 && count >= 1 && first + count <= out.row_, "columns of the array");
  out.shape_ = {shape_[0], count};
  out.begin_ += static_cast<std::uint64_t>(first) * c10::elementSize(dtype_);
  return out;
}

Status NpyArray::read(std::int64_t first, std::span<std::byte> out) const {
  const auto width = static_cast<std::int64_t>(c10::elementSize(dtype_));
  const auto at = [&](std::int64_t element) {
    return begin_ + static_cast<std::uint64_t>(element * width);
  };
  if (row_ == 0) return file_->read(at(first), out);
  while (!out.empty()) {
    const std::int64_t row = first / shape_[1], column = first % shape_[1];
    const std::int64_t count = std::min(shape_[1] - column, std::ssize(out) / width);
    const auto bytes = static_cast<std::size_t>(count * width);
    STORMO_RETURN_IF_ERROR(file_->read(at(row * row_ + column), out.first(bytes)));
    out = out.subspan(bytes);
    first += count;
  }
  return {};
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
