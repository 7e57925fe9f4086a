#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/checkpoint/file/checked_file.h>
#include <stormo/checkpoint/format/box.h>
#include <stormo/checkpoint/format/run_identity.h>

namespace stormo::checkpoint {

/// A box of a tensor, and the safetensors file and key of the tensor that has its values.
struct SavedBox {
  Box box;
  std::string file;
  std::string key;
  bool operator==(const SavedBox&) const = default;
};

struct SavedTensor {
  std::string dtype;  ///< as in safetensors files
  std::vector<std::int64_t> shape;
  std::vector<SavedBox> boxes;
  bool operator==(const SavedTensor&) const = default;
};

/// The content of manifest.json, which describes a checkpoint and makes it complete.
struct Manifest {
  static constexpr int kSchema = 2;
  static constexpr const char* kFile = "manifest.json";

  std::int64_t schema = kSchema;  ///< 1: two files with whole tensors, and no table of tensors
  RunIdentity run{};
  std::string name{};  ///< of the recipe or program
  std::int64_t step = 0;
  std::int64_t samples = 0;
  std::string stormo_version{};
  std::string torch_version{};
  std::map<std::string, FileDigest> files{};
  std::map<std::string, SavedTensor> tensors{};
  std::string recipe_json = "{}";
  std::string preprocessing_json = "{}";  ///< of the recipe's data; absent in older ones
  std::string state_json = "{}";          ///< positions in the data, random seeds
  bool operator==(const Manifest&) const = default;
};

/// Longer texts are refused before anything is parsed.
inline constexpr std::uint64_t kMaxManifestBytes = 64u << 20;

/// JSON of schema 2, a line per tensor, that ends in a checksum over everything before it.
std::string format_manifest(const Manifest& manifest);

/// Reads schemas 1 and 2. kCorrupt for a text that is not an undamaged manifest, kInvalidArgument
/// for a newer schema. Checks everything that does not need other files: file names are inside the
/// checkpoint, files of boxes are listed, boxes are inside their tensors.
Result<Manifest> parse_manifest(std::string_view text);

/// The run in the manifest at `path`. Reads only its beginning and checks no checksum.
Result<RunIdentity> read_run_identity(const std::string& path);

/// kCorrupt names a tensor whose boxes do not cover it exactly once.
Status check_coverage(const Manifest& manifest);

/// The manifest of the checkpoint at `path`: kNotFound when it has none (it is not complete),
/// kCorrupt when it or a file it lists is missing, of another size or damaged. `deep` reads all
/// files and compares their checksums; otherwise only sizes are compared.
Result<Manifest> check_checkpoint(const std::string& path, bool deep);

}  // namespace stormo::checkpoint
