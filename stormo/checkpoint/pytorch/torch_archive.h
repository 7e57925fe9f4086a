#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/checkpoint/file/safetensors_file.h>
#include <stormo/checkpoint/pytorch/pickle.h>
#include <stormo/checkpoint/pytorch/zip.h>

namespace stormo::checkpoint {

/// The dtype of safetensors files, "F32", of a name in torch, "float32", and the way back. Empty
/// when there is none.
std::string_view dtype_of_torch(std::string_view name);
std::string_view torch_of_dtype(std::string_view dtype);

/// A tensor as it lies in a file of torch.save.
struct ArchivedTensor {
  std::string dtype;  ///< as in safetensors files
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  ///< in elements, none negative
  std::uint64_t first = 0;            ///< number of the first element in its storage
  ZipEntry storage;
};

/// What torch.save() wrote, read without trust. `read` is borrowed by all calls; it reads from the
/// beginning of the archive.
class TorchArchive {
 public:
  /// Reads the pickle, of at most 64 MiB. kCorrupt says what is wrong, also of files from
  /// big-endian machines.
  static Result<TorchArchive> open(std::uint64_t bytes, const ReadAt& read);

  /// The pickle of the saved object.
  const std::string& pickle() const { return pickle_; }

  /// The tensor, if the saved object is one, with all its elements inside of its storage. kCorrupt
  /// names the class of what else it is: quantized, sparse, sharded, ...
  Result<ArchivedTensor> tensor() const;

 private:
  std::vector<ZipEntry> entries_;
  std::string root_;  ///< of all names in it
  std::string pickle_;
};

/// Copies the elements in C order to `values`, which has room for them, and checks the checksum of
/// their storage.
Status read_values(const ArchivedTensor& tensor, const ReadAt& read, char* values);

/// Writes the archive of an object without tensors into a file, at its end; returns its size.
Result<std::uint64_t> write_archive(FileWriter& file, std::string_view pickle);
/// The same of a tensor in C order, whose bytes `write` gives to the ZipWriter, all of them.
Result<std::uint64_t> write_tensor_archive(FileWriter& file, const std::string& dtype,
                                           const std::vector<std::int64_t>& shape,
                                           const std::function<Status(ZipWriter&)>& write);

}  // namespace stormo::checkpoint
