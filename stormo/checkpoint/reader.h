#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include <stormo/base/status.h>
#include <stormo/checkpoint/manifest.h>
#include <stormo/checkpoint/safetensors_file.h>

namespace stormo::checkpoint {

/// A checkpoint open for reading: any part of any tensor, whoever wrote which box of it. Every rank
/// opens its own and reads what it wants: no collective. Not thread-safe; several readers are
/// independent.
///
/// Files are not trusted. What is read was compared with the checksums of the manifest, in blocks
/// (1 MiB), each read once when parts are asked for in the order of the files.
class CheckpointReader {
 public:
  /// Reads the manifest of the checkpoint at `path` (schema 1 or 2) and compares the sizes of its
  /// files. kNotFound without a manifest; kCorrupt and kInvalidArgument say which file is wrong,
  /// and how.
  static Result<CheckpointReader> open(const std::string& path);

  const std::string& path() const { return path_; }
  /// Of schema 2, whatever was read.
  const Manifest& manifest() const { return manifest_; }

  /// Copies elements [begin, end) of tensor `name`, in C order, to `destination`, which has room
  /// for them. kNotFound for an unknown name; after a failure `destination` is unspecified.
  Status read(const std::string& name, std::int64_t begin, std::int64_t end, void* destination);

 private:
  struct Shard {
    VerifiedFile file;
    std::uint64_t data_begin = 0;
    std::map<std::string, SafetensorsEntry, std::less<>> entries;
  };

  CheckpointReader() = default;
  Result<Shard*> shard(const std::string& file);
  Status add_legacy_tensors();
  Status read_box(const SavedTensor& tensor, const SavedBox& box, std::int64_t begin,
                  std::int64_t end, char* destination);

  std::string path_;
  Manifest manifest_;
  std::map<std::string, std::unique_ptr<Shard>> shards_;
};

}  // namespace stormo::checkpoint
