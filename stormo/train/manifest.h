#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include <stormo/base/status.h>
#include <stormo/train/checked_file.h>

namespace stormo::train {

/// What a checkpoint says about itself in manifest.json, the file that makes it complete.
struct Manifest {
  static constexpr int kSchema = 1;

  std::string name{};  ///< of the recipe or program
  std::int64_t step = 0;
  std::int64_t samples = 0;
  std::string weights_hash{};
  std::string stormo_version{};
  std::string torch_version{};
  std::map<std::string, FileDigest> files{};
  std::string recipe_json = "{}";
  bool operator==(const Manifest&) const = default;
};

/// Pretty-printed JSON that ends in a checksum over everything else in it.
std::string format_manifest(const Manifest& manifest);

/// kCorrupt for what is no undamaged manifest, kInvalidArgument for one of a newer schema.
Result<Manifest> parse_manifest(std::string_view text);

/// The manifest of the checkpoint at `path`: kNotFound when it has none (it is not complete),
/// kCorrupt when it or a file it lists is missing, of another size or damaged. `deep` reads all
/// files and compares their checksums; otherwise only sizes are compared.
Result<Manifest> check_checkpoint(const std::string& path, bool deep);

}  // namespace stormo::train
