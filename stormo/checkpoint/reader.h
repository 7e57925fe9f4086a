#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include <stormo/base/status.h>
#include <stormo/checkpoint/file/safetensors_file.h>
#include <stormo/checkpoint/format/manifest.h>

namespace stormo::checkpoint {

/// A checkpoint open for reading. It reads any part of any tensor, independent of the boxes in
/// which it was written. Each rank opens its own reader; no call is a collective. Not thread-safe;
/// several readers are independent.
///
/// Files are not trusted. All data are compared with the checksums of the manifest, in blocks of 1
/// MiB. Each block is read once if parts are requested in the order of the files.
class CheckpointReader {
 public:
  /// Reads the manifest of the checkpoint at `path` (schema 1 or 2) and compares the sizes of its
  /// files. kNotFound without a manifest; kCorrupt and kInvalidArgument say which file is wrong,
  /// and how.
  static Result<CheckpointReader> open(const std::string& path);

  const std::string& path() const { return path_; }
  /// In the form of schema 2, also for a checkpoint of schema 1.
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
