#include <stormo/train/manifest.h>

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <type_traits>

namespace stormo::train {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr const char* kFormat = "stormo-checkpoint";
constexpr const char* kChecksum = "manifest_xxh3_64";
constexpr std::uint64_t kMaxManifestBytes = 16u << 20;
constexpr int kMaxDepth = 32;

std::string dump(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

std::string checksum(const Json& without_checksum) {
  const std::string text = dump(without_checksum);
  Hasher hasher;
  hasher.add(text.data(), text.size());
  return to_hex(hasher.digest());
}

Status corrupt(std::string message) { return Status(Code::kCorrupt, std::move(message)); }

/// Null unless `text` is an object that nests within reason: printing one recurses.
Json parse_object(std::string_view text) {
  bool too_deep = false;
  Json json = Json::parse(
      text.begin(), text.end(),
      [&](int depth, Json::parse_event_t, Json&) {
        too_deep = too_deep || depth > kMaxDepth;
        return !too_deep;
      },
      /*allow_exceptions=*/false);
  return too_deep || !json.is_object() ? Json() : json;
}

bool parse_hex(const std::string& text, std::uint64_t& value) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value, 16);
  return text.size() == 16 && error == std::errc{} && stop == end;
}

/// Files lie beside the manifest: a name that leads anywhere else is an attack.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name.front() != '.' &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
         });
}

Status read_files(const Json& json, Manifest& m) {
  for (const auto& [name, entry] : json.items()) {
    FileDigest digest;
    if (!is_plain_name(name)) return corrupt("a file name that leads out of the checkpoint");
    if (!entry.is_object() || !entry.contains("bytes") || !entry["bytes"].is_number_unsigned() ||
        !entry.contains("xxh3_64") || !entry["xxh3_64"].is_string() ||
        !parse_hex(entry["xxh3_64"].get<std::string>(), digest.xxh3)) {
      return corrupt("no size or checksum for " + name);
    }
    digest.bytes = entry["bytes"].get<std::uint64_t>();
    m.files[name] = digest;
  }
  return ok_status();
}

template <class T>
bool take(const Json& json, const char* key, T& value) {
  const auto found = json.find(key);
  if (found == json.end()) return false;
  if constexpr (std::is_same_v<T, std::string>) {
    if (!found->is_string()) return false;
  } else {
    if (!found->is_number_integer()) return false;
  }
  value = found->template get<T>();
  return true;
}

}  // namespace

std::string format_manifest(const Manifest& m) {
  Json files = Json::object();
  for (const auto& [name, digest] : m.files) {
    files[name] = {{"bytes", digest.bytes}, {"xxh3_64", to_hex(digest.xxh3)}};
  }
  const Json recipe = parse_object(m.recipe_json);
  Json json = {{"format", kFormat},
               {"schema", Manifest::kSchema},
               {"name", m.name},
               {"step", m.step},
               {"samples", m.samples},
               {"weights_hash", m.weights_hash},
               {"stormo_version", m.stormo_version},
               {"torch_version", m.torch_version},
               {"files", std::move(files)},
               {"recipe", recipe.is_object() ? recipe : Json::object()}};
  json[kChecksum] = checksum(json);
  return dump(json, 2) + "\n";
}

Result<Manifest> parse_manifest(std::string_view text) {
  Json json = parse_object(text);
  std::string format, stated;
  if (!json.is_object()) return corrupt("no valid JSON object");
  if (!take(json, "format", format) || format != kFormat) {
    return corrupt("not written by Stormo (its format is not \"stormo-checkpoint\")");
  }
  std::int64_t schema = 0;
  if (!take(json, "schema", schema)) return corrupt("no schema version");
  if (schema != Manifest::kSchema) {
    return invalid_argument(fmt::format(
        "written with checkpoint schema {}, this program reads {}; use the version that wrote it",
        schema, Manifest::kSchema));
  }
  if (!take(json, kChecksum, stated)) return corrupt("no checksum");
  json.erase(kChecksum);
  if (stated != checksum(json)) return corrupt("checksum does not match: damaged or edited");
  Manifest m;
  if (!take(json, "name", m.name) || !take(json, "step", m.step) ||
      !take(json, "samples", m.samples) || !take(json, "weights_hash", m.weights_hash) ||
      !take(json, "stormo_version", m.stormo_version) ||
      !take(json, "torch_version", m.torch_version) || m.step < 0 || m.samples < 0 ||
      !json.contains("files") || !json["files"].is_object() || !json.contains("recipe") ||
      !json["recipe"].is_object()) {
    return corrupt("a field is missing or of the wrong type");
  }
  STORMO_RETURN_IF_ERROR(read_files(json["files"], m));
  m.recipe_json = dump(json["recipe"]);
  return m;
}

Result<Manifest> check_checkpoint(const std::string& path, bool deep) {
  const std::string manifest_path = fs::path(path) / "manifest.json";
  STORMO_ASSIGN_OR_RETURN(const std::string text, read_text_file(manifest_path, kMaxManifestBytes));
  const Result<Manifest> manifest = parse_manifest(text);
  if (!manifest.ok()) return manifest.status().within(manifest_path);
  for (const auto& [name, expected] : manifest->files) {
    const std::string file_path = fs::path(path) / name;
    FileReader file;
    const Status opened = file.open(file_path);
    if (!opened.ok()) return corrupt(opened.message());
    if (file.size() != expected.bytes) {
      return corrupt(fmt::format("{} has {} bytes, its manifest says {}: damaged", file_path,
                                 file.size(), expected.bytes));
    }
    if (!deep) continue;
    STORMO_ASSIGN_OR_RETURN(const FileDigest found, digest_file(file_path));
    if (found != expected) {
      return corrupt(fmt::format("{}: checksum {} differs from the manifest's {}: damaged",
                                 file_path, to_hex(found.xxh3), to_hex(expected.xxh3)));
    }
  }
  return manifest;
}

}  // namespace stormo::train
