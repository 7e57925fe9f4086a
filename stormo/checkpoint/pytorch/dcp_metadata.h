#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/checkpoint/format/box.h>

namespace stormo::checkpoint {

/// Where an archive of torch.save() lies in a DCP folder.
struct DcpPlace {
  std::string file{};
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

/// A part of a tensor, as one rank has written it.
struct DcpChunk {
  Box box{};
  DcpPlace place{};
};

/// What a DCP folder holds under one name: a tensor, or another object of Python.
struct DcpEntry {
  std::string name{};
  /// The keys that led to it in the nested state that was saved; the name alone if nobody knows.
  std::vector<std::string> path{};
  std::string dtype{};  ///< as in safetensors files; empty: no tensor
  std::vector<std::int64_t> shape{};
  std::vector<DcpChunk> chunks{};  ///< of a tensor
  DcpPlace place{};                ///< of another object

  bool is_tensor() const { return !dtype.empty(); }
};

/// The file `.metadata` of a folder that torch.distributed.checkpoint has written.
inline constexpr const char* kDcpMetadata = ".metadata";
/// Of the pickle in it; longer ones are refused before anything is read.
inline constexpr std::uint64_t kMaxDcpMetadataBytes = 64u << 20;

/// Reads a pickle of torch.distributed.checkpoint.metadata.Metadata, without trust. The entries are
/// in the order of the state that was saved. Names of files are plain names, boxes lie inside of
/// their tensors, which they cover exactly once; empty ones are left out. kCorrupt says what is
/// wrong, and names an entry that cannot be read: of an unknown dtype, or compressed.
Result<std::vector<DcpEntry>> parse_dcp_metadata(std::string_view pickle);

/// The same as a pickle that torch.distributed.checkpoint reads.
std::string format_dcp_metadata(const std::vector<DcpEntry>& entries);

}  // namespace stormo::checkpoint
