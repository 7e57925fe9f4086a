// The manifest of a checkpoint and the header of a safetensors file.
#include <stormo/base/check.h>
#include <stormo/checkpoint/file/safetensors_header.h>
#include <stormo/checkpoint/format/manifest.h>

#include "tests/fuzz/fuzz.h"

namespace stormo::fuzz {
namespace {

using namespace checkpoint;

constexpr std::string_view kChecksum = ",\n\"manifest_xxh3_64\":\"";

/// The text with a checksum that fits: no fuzzer finds one.
std::string with_checksum(std::string_view text) {
  const std::string body(text.substr(0, text.rfind(kChecksum)));
  Hasher hasher;
  hasher.add(body.data(), body.size());
  return body + std::string(kChecksum) + to_hex(hasher.digest()) + "\"\n}\n";
}

void check_manifest(std::string_view text) {
  const auto manifest = parse_manifest(text);
  if (!manifest.ok()) return;
  const bool covered = check_coverage(*manifest).ok();
  for (const auto& [name, tensor] : manifest->tensors) {
    std::int64_t elements = 0;
    for (const SavedBox& b : tensor.boxes) {
      STORMO_CHECK(is_inside(b.box, tensor.shape), "a box leaves its tensor");
      STORMO_CHECK(manifest->files.contains(b.file), "a box in no file");
      if (!covered) continue;
      elements += *num_elements(b.box.sizes);
    }
    STORMO_CHECK(!covered || elements == *num_elements(tensor.shape), "not covered");
  }
  if (manifest->schema != Manifest::kSchema) return;
  const auto again = parse_manifest(format_manifest(*manifest));
  STORMO_CHECK(again.ok() && *again == *manifest, "another manifest");
}

void check_header(std::string_view json) {
  const auto header = parse_safetensors_header(json, 64);
  if (!header.ok()) return;
  std::uint64_t end = 0;
  for (const SafetensorsEntry& e : header->entries) {
    STORMO_CHECK(e.begin == end && e.end >= e.begin, "a hole or an overlap");
    end = e.end;
  }
  STORMO_CHECK(end == 64, "bytes that belong to nothing");
}

}  // namespace

std::vector<std::string> seeds() {
  Manifest m{.name = "x", .step = 2, .samples = 4, .stormo_version = "1", .torch_version = "2"};
  m.files["a.safetensors"] = {.bytes = 60, .block_bytes = 32, .blocks = {6, 7}};
  m.tensors["w"] = {"F32",
                    {2, 3},
                    {{{{0, 0}, {1, 3}}, "a.safetensors", "w[0:1,0:3]"},
                     {{{1, 0}, {1, 3}}, "a.safetensors", "w[1:2,0:3]"}}};
  m.tensors["columns"] = {
      "F32",
      {2, 3},
      {{{{0, 0}, {2, 1}}, "a.safetensors", "c0"}, {{{0, 1}, {2, 2}}, "a.safetensors", "c1"}}};
  SafetensorsHeader header;
  header.metadata = {{"format", "pt"}};
  header.entries = {{.name = "a", .dtype = "F32", .shape = {3, 5}},
                    {.name = "b", .dtype = "U8", .shape = {4}},
                    {.name = "c", .dtype = "F64", .shape = {0}}};
  return {format_manifest(m), format_manifest({}),
          format_safetensors_header(header).take_or_throw()};
}

}  // namespace stormo::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stormo::fuzz;
  const std::string_view text = as_text(data, size);
  check_header(text);
  check_manifest(text);
  check_manifest(with_checksum(text));
  return 0;
}
