#include <stormo/checkpoint/format/manifest.h>

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include <stormo/checkpoint/file/safetensors_header.h>
#include <stormo/checkpoint/format/json_parts.inc>

namespace stormo::checkpoint {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

using LegacyJson = nlohmann::ordered_json;  // keeps the order that the checksum is of

constexpr const char* kManifestFormat = "stormo-checkpoint";
constexpr const char* kManifestChecksum = "manifest_xxh3_64";
constexpr std::size_t kMaxLegacyBytes = 1u << 20;  // a recipe and two files
constexpr std::size_t kMaxDims = 64;
constexpr std::size_t kHexDigits = 16;        // of one checksum, of one run
constexpr std::size_t kMaxReplaced = 1000;    // runs, by one
constexpr std::size_t kHeadBytes = 64 << 10;  // of a manifest, with the run it names

template <class Json, class T>
bool take(const Json& json, const char* key, T& value) {
  const auto found = json.find(key);
  if (found == json.end()) return false;
  if constexpr (std::is_same_v<T, std::string>) {
    if (!found->is_string()) return false;
  } else {
    // A larger one would be taken for negative.
    if (!found->is_number_integer() ||
        (found->is_number_unsigned() && found->template get<std::uint64_t>() > INT64_MAX)) {
      return false;
    }
  }
  value = found->template get<T>();
  return true;
}

template <class Json>
std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool parse_hex(std::string_view text, std::uint64_t& value) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value, 16);
  return text.size() == kHexDigits && error == std::errc{} && stop == end;
}

/// Files lie beside the manifest: a name that leads anywhere else is an attack.
bool is_plain_name(std::string_view name) {
  return !name.empty() && name.front() != '.' &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
         });
}

std::string checksum_of(std::string_view text) {
  Hasher hasher;
  hasher.add(text.data(), text.size());
  return to_hex(hasher.digest());
}

Status corrupt(std::string message) { return Status(Code::kCorrupt, std::move(message)); }

std::string json_text(const std::string& text) { return dump(Json(text)); }

std::string object_text(const std::string& json) {
  const Json object = parse_json_object<Json>(json);
  return object.is_object() ? dump(object) : "{}";
}

Json to_json(const RunIdentity& run) { return {{"id", run.id}, {"replaces", run.replaces}}; }

Json to_json(const FileDigest& digest) {
  std::string hex;
  for (const std::uint64_t block : digest.blocks) hex += to_hex(block);
  return {{"bytes", digest.bytes}, {"block_bytes", digest.block_bytes}, {"xxh3_64", hex}};
}

nlohmann::ordered_json to_json(const std::string& name, const SavedTensor& t) {
  nlohmann::ordered_json boxes = nlohmann::ordered_json::array();
  for (const SavedBox& b : t.boxes) {
    boxes.push_back(
        {{"offsets", b.box.offsets}, {"sizes", b.box.sizes}, {"file", b.file}, {"key", b.key}});
  }
  return {{"name", name}, {"dtype", t.dtype}, {"shape", t.shape}, {"boxes", std::move(boxes)}};
}

bool is_run_id(const Json& json) {
  std::uint64_t ignored = 0;
  return json.is_string() && (json == "" || parse_hex(json.get<std::string>(), ignored));
}

/// What was written before runs had an identity has no such member.
Status read_run(const Json& json, RunIdentity& run) {
  if (json.is_null()) return ok_status();
  const Json replaces = json.is_object() ? json.value("replaces", Json()) : Json();
  const Json id = json.is_object() ? json.value("id", Json()) : Json();
  if (!is_run_id(id) || !replaces.is_array() || replaces.size() > kMaxReplaced ||
      !std::all_of(replaces.begin(), replaces.end(), is_run_id)) {
    return corrupt("a run without id, or with one that is no hexadecimal number");
  }
  run = {id.get<std::string>(), replaces.get<std::vector<std::string>>()};
  return ok_status();
}

Result<FileDigest> read_digest(const Json& entry) {
  FileDigest digest;
  std::int64_t bytes = -1, block_bytes = -1;
  std::string hex;
  if (!entry.is_object() || !take(entry, "bytes", bytes) || bytes < 0 ||
      !take(entry, "block_bytes", block_bytes) || block_bytes <= 0 ||
      !take(entry, "xxh3_64", hex)) {
    return corrupt("no size or checksums");
  }
  digest.bytes = static_cast<std::uint64_t>(bytes);
  digest.block_bytes = static_cast<std::uint64_t>(block_bytes);
  const std::uint64_t blocks =
      digest.bytes / digest.block_bytes + (digest.bytes % digest.block_bytes != 0 ? 1 : 0);
  if (hex.size() % kHexDigits != 0 || hex.size() / kHexDigits != blocks) {
    return corrupt("another number of checksums than its size needs");
  }
  for (std::size_t at = 0; at < hex.size(); at += kHexDigits) {
    std::uint64_t& block = digest.blocks.emplace_back();
    if (!parse_hex(std::string_view(hex).substr(at, kHexDigits), block)) {
      return corrupt("a checksum that is no hexadecimal number");
    }
  }
  return digest;
}

bool take_sizes(const Json& json, const char* key, std::vector<std::int64_t>& sizes) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_array() || found->size() > kMaxDims) return false;
  for (const Json& size : *found) {
    if (!size.is_number_unsigned() || size.get<std::uint64_t>() > INT64_MAX) return false;
    sizes.push_back(size.get<std::int64_t>());
  }
  return true;
}

Result<SavedBox> read_box(const Json& json, const SavedTensor& tensor) {
  SavedBox b;
  if (!json.is_object() || !take_sizes(json, "offsets", b.box.offsets) ||
      !take_sizes(json, "sizes", b.box.sizes) || !take(json, "file", b.file) ||
      !take(json, "key", b.key)) {
    return corrupt("a box without offsets, sizes, file and key");
  }
  if (!num_elements(b.box.sizes) || !is_inside(b.box, tensor.shape)) {
    return corrupt("a box that does not lie in the tensor");
  }
  return b;
}

Status read_tensor(const Json& json, Manifest& m) {
  SavedTensor t;
  std::string name;
  if (!json.is_object() || !take(json, "name", name) || !take(json, "dtype", t.dtype) ||
      !take_sizes(json, "shape", t.shape) || !json.contains("boxes") || !json["boxes"].is_array()) {
    return corrupt("a tensor without name, dtype, shape and boxes");
  }
  const std::string where = "tensor " + json_text(name);
  const auto width = safetensors_dtype_bytes(t.dtype);
  const auto elements = num_elements(t.shape);
  if (!width) return corrupt(where + ": unknown dtype");
  if (!elements || *elements > INT64_MAX / static_cast<std::int64_t>(*width)) {
    return corrupt(where + ": the size of its shape overflows");
  }
  for (const Json& box : json["boxes"]) {
    Result<SavedBox> read = read_box(box, t);
    if (!read.ok()) return read.status().within(where);
    t.boxes.push_back(std::move(read).value());
  }
  if (!m.tensors.emplace(name, std::move(t)).second) return corrupt(where + " is given twice");
  return ok_status();
}

Status read_file(const std::string& name, const Json& json, Manifest& m) {
  if (!is_plain_name(name)) return corrupt("a file name that leads out of the checkpoint");
  Result<FileDigest> digest = read_digest(json);
  if (!digest.ok()) return digest.status().within(name);
  if (!m.files.emplace(name, std::move(digest).value()).second) {
    return corrupt(name + " is given twice");
  }
  return ok_status();
}

/// Boxes lie in files that are listed and large enough for all of theirs: so nobody allocates
/// memory for values that no file has.
Status check_boxes(const Manifest& m) {
  std::map<std::string, std::uint64_t> free;
  for (const auto& [name, digest] : m.files) free[name] = digest.bytes;
  for (const auto& [name, tensor] : m.tensors) {
    const std::uint64_t width = *safetensors_dtype_bytes(tensor.dtype);
    for (const SavedBox& b : tensor.boxes) {
      const auto left = free.find(b.file);
      const std::uint64_t bytes = static_cast<std::uint64_t>(*num_elements(b.box.sizes)) * width;
      if (left == free.end() || bytes > left->second) {
        return corrupt("tensor " + json_text(name) +
                       (left == free.end() ? ": a box in a file that is not listed"
                                           : ": more values than " + b.file + " has room for"));
      }
      left->second -= bytes;
    }
  }
  return ok_status();
}

/// Everything before the checksum's own line counts, to the byte.
Status check_checksum(std::string_view text) {
  const std::size_t at = text.rfind(fmt::format(",\n\"{}\":", kManifestChecksum));
  if (at == std::string_view::npos) return corrupt("no checksum at its end");
  const std::string tail =
      fmt::format(",\n\"{}\":\"{}\"\n}}\n", kManifestChecksum, checksum_of(text.substr(0, at)));
  if (text.substr(at) != tail) return corrupt("checksum does not match: damaged or edited");
  return ok_status();
}

Status read_legacy_files(const LegacyJson& json, Manifest& m) {
  for (const auto& [name, entry] : json.items()) {
    std::string hex;
    std::int64_t bytes = -1;
    std::uint64_t xxh3 = 0;
    if (!is_plain_name(name)) return corrupt("a file name that leads out of the checkpoint");
    if (!entry.is_object() || !take(entry, "bytes", bytes) || bytes < 0 ||
        !take(entry, "xxh3_64", hex) || !parse_hex(hex, xxh3)) {
      return corrupt("no size or checksum for " + name);
    }
    // One block, however large; an empty file is not a safetensors file anyway.
    const auto size = static_cast<std::uint64_t>(bytes);
    if (size == 0) return corrupt(name + " is empty");
    m.files[name] = {.bytes = size, .block_bytes = size, .blocks = {xxh3}};
  }
  return ok_status();
}

/// Schema 1: model.safetensors and optimizer.safetensors, each with one checksum.
Result<Manifest> parse_legacy_manifest(std::string_view text) {
  if (text.size() > kMaxLegacyBytes) return corrupt("longer than 1 MiB");
  LegacyJson json = parse_json_object<LegacyJson>(text);
  std::string stated;
  if (!json.is_object() || !take(json, kManifestChecksum, stated)) return corrupt("no checksum");
  json.erase(kManifestChecksum);
  if (stated != checksum_of(dump(json))) {
    return corrupt("checksum does not match: damaged or edited");
  }
  Manifest m{.schema = 1};
  if (!take(json, "name", m.name) || !take(json, "step", m.step) ||
      !take(json, "samples", m.samples) || !take(json, "stormo_version", m.stormo_version) ||
      !take(json, "torch_version", m.torch_version) || m.step < 0 || m.samples < 0 ||
      !json.contains("files") || !json["files"].is_object() || !json.contains("recipe") ||
      !json["recipe"].is_object()) {
    return corrupt("a field is missing or of the wrong type");
  }
  STORMO_RETURN_IF_ERROR(read_legacy_files(json["files"], m));
  m.recipe_json = dump(json["recipe"]);
  return m;
}

bool has(const Json& json, const char* key, Json::value_t type) {
  const auto found = json.find(key);
  return found != json.end() && found->type() == type;
}

Status check_schema(const Json& schema) {
  std::int64_t number = 0;
  if (!take(Json{{"schema", schema}}, "schema", number)) return corrupt("no schema version");
  if (number == Manifest::kSchema) return ok_status();
  return invalid_argument(fmt::format(
      "written with checkpoint schema {}, this program reads 1 to {}; use the version that wrote "
      "it",
      number, Manifest::kSchema));
}

Status check_format(const Json& format) {
  if (format == kManifestFormat) return ok_status();
  return corrupt("not written by Stormo (its format is not \"stormo-checkpoint\")");
}

/// What a text is whose end is not that of an undamaged manifest of our schema: an old one, one of
/// a newer program, a damaged one, or none at all.
Result<Manifest> parse_other(std::string_view text, const Status& damage) {
  if (text.size() > kMaxLegacyBytes) return damage;
  const Json json = parse_json_object<Json>(text);
  if (!json.is_object()) return corrupt("no valid JSON object");
  STORMO_RETURN_IF_ERROR(check_format(json.value("format", Json())));
  const Json schema = json.value("schema", Json());
  if (schema == 1) return parse_legacy_manifest(text);
  STORMO_RETURN_IF_ERROR(check_schema(schema));
  return damage;
}

/// The members of a manifest; of `files` and `tensors`, which go into `m` at once, only their kind.
Result<Json> read_members(std::string_view text, Manifest& m) {
  Json members = Json::object();
  const JsonPartHandlers handlers = {
      .is_split = [](const std::string& key) { return key == "files" || key == "tensors"; },
      .member = [&](const std::string& key, Json& value) -> Status {
        if (key == "format") STORMO_RETURN_IF_ERROR(check_format(value));
        if (key == "schema") STORMO_RETURN_IF_ERROR(check_schema(value));
        members[key] = std::move(value);
        return ok_status();
      },
      .entry =
          [&](const std::string& key, const std::string& name, Json& value) {
            return key == "files" ? read_file(name, value, m) : read_tensor(value, m);
          }};
  STORMO_RETURN_IF_ERROR(read_json_parts(text, handlers));
  return members;
}

}  // namespace

std::string format_manifest(const Manifest& m) {
  std::string text =
      fmt::format("{{\n\"format\":\"{}\",\n\"schema\":{}", kManifestFormat, Manifest::kSchema);
  const auto add = [&](const char* key, const std::string& value) {
    fmt::format_to(std::back_inserter(text), ",\n\"{}\":{}", key, value);
  };
  add("run", dump(to_json(m.run)));
  add("name", json_text(m.name));
  add("step", std::to_string(m.step));
  add("samples", std::to_string(m.samples));
  add("state", object_text(m.state_json));
  add("stormo_version", json_text(m.stormo_version));
  add("torch_version", json_text(m.torch_version));
  add("files", "{");
  const char* separator = "\n";
  for (const auto& [name, digest] : m.files) {
    text += std::exchange(separator, ",\n") + json_text(name) + ":" + dump(to_json(digest));
  }
  text += "\n}";
  add("tensors", "[");
  separator = "\n";
  for (const auto& [name, tensor] : m.tensors) {
    text += std::exchange(separator, ",\n") + dump(to_json(name, tensor));
  }
  text += "\n]";
  add("recipe", object_text(m.recipe_json));
  add("preprocessing", object_text(m.preprocessing_json));
  add(kManifestChecksum, json_text(checksum_of(text)));
  return text + "\n}\n";
}

Result<Manifest> parse_manifest(std::string_view text) {
  if (text.size() > kMaxManifestBytes) return corrupt("longer than 64 MiB");
  const Status whole = check_checksum(text);
  if (!whole.ok()) return parse_other(text, whole);
  Manifest m;
  STORMO_ASSIGN_OR_RETURN(const Json json, read_members(text, m));
  STORMO_RETURN_IF_ERROR(check_format(json.value("format", Json())));
  STORMO_RETURN_IF_ERROR(check_schema(json.value("schema", Json())));
  if (!take(json, "name", m.name) || !take(json, "step", m.step) ||
      !take(json, "samples", m.samples) || !take(json, "stormo_version", m.stormo_version) ||
      !take(json, "torch_version", m.torch_version) || m.step < 0 || m.samples < 0 ||
      !has(json, "files", Json::value_t::object) || !has(json, "tensors", Json::value_t::array) ||
      !has(json, "recipe", Json::value_t::object) || !has(json, "state", Json::value_t::object)) {
    return corrupt("a field is missing or of the wrong type");
  }
  STORMO_RETURN_IF_ERROR(read_run(json.value("run", Json()), m.run));
  STORMO_RETURN_IF_ERROR(check_boxes(m));
  m.recipe_json = dump(json["recipe"]);
  m.state_json = dump(json["state"]);
  if (has(json, "preprocessing", Json::value_t::object)) {
    m.preprocessing_json = dump(json["preprocessing"]);
  }
  return m;
}

Result<RunIdentity> read_run_identity(const std::string& path) {
  FileReader file;
  STORMO_RETURN_IF_ERROR(file.open(path));
  std::string head(static_cast<std::size_t>(std::min<std::uint64_t>(file.size(), kHeadBytes)), 0);
  STORMO_RETURN_IF_ERROR(file.read(0, head.data(), head.size()));
  RunIdentity run;
  bool found = false, begun = false;
  const auto stop = [&] {  // the run comes before the name
    found = true;
    return Status(Code::kCancelled, "enough");
  };
  const Status read = read_json_parts(
      head, {.is_split = [](const std::string&) { return false; },
             .member = [&](const std::string& key, Json& value) -> Status {
               if (key == "format") STORMO_RETURN_IF_ERROR(check_format(value));
               begun = begun || key == "format";
               if (key == "run") STORMO_RETURN_IF_ERROR(read_run(value, run));
               return begun && (key == "run" || key == "name") ? stop() : ok_status();
             },
             .entry = {}});
  if (found) return run;
  return read.ok() ? corrupt(path + ": no manifest") : read.within(path);
}

Status check_coverage(const Manifest& m) {
  for (const auto& [name, tensor] : m.tensors) {
    std::vector<Box> boxes;
    for (const SavedBox& b : tensor.boxes) boxes.push_back(b.box);
    if (!cover_exactly(boxes, tensor.shape)) {
      return corrupt("tensor " + json_text(name) + ": its boxes do not cover it exactly once");
    }
  }
  return ok_status();
}

Result<Manifest> check_checkpoint(const std::string& path, bool deep) {
  const std::string manifest_path = fs::path(path) / Manifest::kFile;
  STORMO_ASSIGN_OR_RETURN(const std::string text, read_text_file(manifest_path, kMaxManifestBytes));
  Result<Manifest> manifest = parse_manifest(text);
  if (manifest.ok() && !check_coverage(*manifest).ok()) manifest = check_coverage(*manifest);
  if (!manifest.ok()) return manifest.status().within(manifest_path);
  for (const auto& [name, expected] : manifest->files) {
    VerifiedFile file;
    STORMO_RETURN_IF_ERROR(file.open(fs::path(path) / name, expected));
    if (deep) STORMO_RETURN_IF_ERROR(file.verify());
  }
  return manifest;
}

}  // namespace stormo::checkpoint
