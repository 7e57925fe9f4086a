#include <stormo/checkpoint/format/shard.h>

#include <fmt/format.h>

#include <filesystem>
#include <iterator>
#include <map>
#include <utility>

#include <stormo/checkpoint/file/safetensors_file.h>

namespace stormo::checkpoint {
namespace {

std::string key_of(const Piece& piece, const Box& box) {
  if (box.sizes == piece.shape) return piece.name;
  std::string key = piece.name + "[";
  for (std::size_t d = 0; d < box.sizes.size(); ++d) {
    fmt::format_to(std::back_inserter(key), "{}{}:{}", d == 0 ? "" : ",", box.offsets[d],
                   box.offsets[d] + box.sizes[d]);
  }
  return key + "]";
}

Status add_piece(const Piece& piece, const std::string& file, SafetensorsHeader& header,
                 std::map<std::string, const char*>& values, Manifest& manifest) {
  STORMO_RETURN_IF_ERROR(check_piece(piece));
  if (piece.name.empty() || piece.name == "__metadata__") {
    return invalid_argument("'" + piece.name + "' cannot name a tensor");
  }
  SavedTensor& tensor = manifest.tensors[piece.name];
  if (tensor.dtype.empty()) {
    tensor.dtype = piece.dtype;
    tensor.shape = piece.shape;
  }
  if (tensor.dtype != piece.dtype || tensor.shape != piece.shape) {
    return invalid_argument("tensor '" + piece.name + "' is given with two shapes or dtypes");
  }
  const char* next = static_cast<const char*>(piece.data);
  std::vector<Box> boxes = piece.box ? std::vector<Box>{*piece.box}
                                     : boxes_of_range(piece.shape, piece.begin, piece.end);
  for (Box& box : boxes) {
    const std::string key = key_of(piece, box);
    if (!values.emplace(key, next).second) {
      return invalid_argument("'" + key + "' is given twice");
    }
    next +=
        static_cast<std::size_t>(*num_elements(box.sizes)) * *safetensors_dtype_bytes(piece.dtype);
    header.entries.push_back({.name = key, .dtype = piece.dtype, .shape = box.sizes});
    tensor.boxes.push_back({.box = std::move(box), .file = file, .key = key});
  }
  return ok_status();
}

}  // namespace

Status write_shard(const std::string& folder, const std::string& name,
                   const std::vector<Piece>& pieces, Manifest& manifest) {
  SafetensorsHeader header;
  header.metadata = {{"format", "pt"}};
  std::map<std::string, const char*> values;
  for (const Piece& piece : pieces) {
    STORMO_RETURN_IF_ERROR(add_piece(piece, name, header, values, manifest));
  }
  const auto write = [&](const SafetensorsEntry& e, FileWriter& file) {
    return file.write(values.at(e.name), static_cast<std::size_t>(e.end - e.begin));
  };
  STORMO_ASSIGN_OR_RETURN(
      manifest.files[name],
      write_safetensors_file(std::filesystem::path(folder) / name, header, write));
  return ok_status();
}

}  // namespace stormo::checkpoint
