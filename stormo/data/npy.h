#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <torch/types.h>

#include <stormo/base/status.h>
#include <stormo/data/data_file.h>

namespace stormo::data {

/// The array of a NumPy .npy file. The data stay in the file, so the array may be larger than
/// memory. Thread-safe.
class NpyArray {
 public:
  /// Errors as of DataFile::open and parse_npy_header, naming the file. Reads the header alone.
  static Result<NpyArray> open(const std::string& path);
  /// Numbers [first, first + count) of each sample of an array [N, ...], as an array [N, count]: no
  /// bytes of others are read, and each sample is read by itself.
  NpyArray columns(std::int64_t first, std::int64_t count) const;

  const std::string& path() const { return file_->path(); }
  const std::vector<std::int64_t>& shape() const { return shape_; }
  /// Of a sample of an array [N, ...]; 0 for an array without samples of numbers.
  std::int64_t sample_elements() const;
  torch::ScalarType dtype() const { return dtype_; }
  /// Fills `out` with elements from index `first` on, in C order; kCorrupt when the file has become
  /// shorter.
  Status read(std::int64_t first, std::span<std::byte> out) const;
  /// Reads the whole array into memory. kExhausted when it does not fit.
  Result<torch::Tensor> load() const;

 private:
  std::shared_ptr<const DataFile> file_;
  std::vector<std::int64_t> shape_;
  torch::ScalarType dtype_ = torch::kFloat32;
  std::uint64_t begin_ = 0;  // of the elements in the file
  std::int64_t row_ = 0;     // elements of a row in the file, of which some are read; 0: all are
};

}  // namespace stormo::data
