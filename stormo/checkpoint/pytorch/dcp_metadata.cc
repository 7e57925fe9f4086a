#include <stormo/checkpoint/pytorch/dcp_metadata.h>

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include <stormo/base/printable.h>
#include <stormo/checkpoint/pytorch/pickle.h>
#include <stormo/checkpoint/pytorch/pickle_writer.h>
#include <stormo/checkpoint/pytorch/torch_archive.h>

namespace stormo::checkpoint {
namespace {

using Kind = PickleValue::Kind;
using Sizes = std::vector<std::int64_t>;

constexpr const char* kModule = "torch.distributed.checkpoint.metadata";
constexpr const char* kStorageModule = "torch.distributed.checkpoint.filesystem";

Status bad_metadata(std::string what) { return Status(Code::kCorrupt, std::move(what)); }

std::string quoted(std::string_view text) {
  return "'" + printable_line(text.substr(0, 200)) + "'";
}

/// What a chunk or an object is looked up by: its name and, of a chunk, its offsets.
using PlaceKey = std::pair<std::string, std::optional<Sizes>>;

/// A torch.Size, or a tuple.
std::optional<Sizes> sizes_of(const Pickle& pickle, const PickleValue* value) {
  if (value != nullptr && pickle.class_name(*value) == "torch.Size" && value->items.size() == 2) {
    value = pickle.item(*pickle.item(*value, 1), 0);
  }
  if (value == nullptr || value->kind != Kind::kTuple) return std::nullopt;
  Sizes out;
  for (const std::uint32_t i : value->items) {
    if (pickle.at(i).kind != Kind::kInteger) return std::nullopt;
    out.push_back(pickle.at(i).integer);
  }
  return out;
}

std::optional<std::string> text_of(const PickleValue* value) {
  if (value == nullptr || value->kind != Kind::kText) return std::nullopt;
  return std::string(value->text);
}

std::optional<std::uint64_t> count_of(const PickleValue* value) {
  if (value == nullptr || value->kind != Kind::kInteger || value->integer < 0) return std::nullopt;
  return static_cast<std::uint64_t>(value->integer);
}

Result<DcpPlace> place_of(const Pickle& pickle, const PickleValue& info) {
  const auto file = text_of(pickle.attribute(info, "relative_path"));
  const auto offset = count_of(pickle.attribute(info, "offset"));
  const auto length = count_of(pickle.attribute(info, "length"));
  if (!file || !offset || !length) {
    return bad_metadata("it is not in a file of the folder; only torch's FileSystemWriter is read");
  }
  if (file->empty() || *file == "." || *file == ".." || file->find('/') != std::string::npos ||
      file->find('\0') != std::string::npos) {
    return bad_metadata("its file " + quoted(*file) + " is none of the folder");
  }
  const PickleValue* transforms = pickle.attribute(info, "transform_descriptors");
  if (transforms != nullptr && !transforms->items.empty()) {
    const auto name = text_of(pickle.item(*transforms, 0));
    return bad_metadata("it was written through an extension (" + quoted(name.value_or("?")) +
                        "), such as compression; save it without");
  }
  return DcpPlace{*file, *offset, *length};
}

/// Metadata.storage_data: which file has what.
Result<std::map<PlaceKey, DcpPlace>> places_of(const Pickle& pickle, const PickleValue* data) {
  std::map<PlaceKey, DcpPlace> out;
  if (data == nullptr || data->kind != Kind::kDict) return bad_metadata("it names no files");
  for (std::size_t i = 0; i + 1 < data->items.size(); i += 2) {
    const PickleValue& index = *pickle.item(*data, i);
    const auto name = text_of(pickle.attribute(index, "fqn"));
    if (!name) return bad_metadata("a file of something without a name");
    const PickleValue* offset = pickle.attribute(index, "offset");
    PlaceKey key{*name, std::nullopt};
    if (offset != nullptr && offset->kind != Kind::kNone) {
      key.second = sizes_of(pickle, offset);
      if (!key.second) return bad_metadata(quoted(*name) + ": the place of a part is none");
    }
    auto place = place_of(pickle, *pickle.item(*data, i + 1));
    if (!place.ok()) return place.status().within(quoted(*name));
    if (!out.emplace(std::move(key), std::move(*place)).second) {
      return bad_metadata(quoted(*name) + ": the same part is there twice");
    }
  }
  return out;
}

Result<std::string> dtype_in(const Pickle& pickle, const PickleValue* properties) {
  const PickleValue* state = properties == nullptr ? nullptr : pickle.item(*properties, 2);
  const PickleValue* dtype = nullptr;
  if (state != nullptr && state->kind == Kind::kTuple) dtype = pickle.item(*state, 0);
  if (dtype == nullptr && properties != nullptr) dtype = pickle.attribute(*properties, "dtype");
  if (dtype == nullptr || dtype->kind != Kind::kClass) return bad_metadata("it has no dtype");
  std::string_view name = pickle.class_name(*dtype);
  if (name.starts_with("torch.")) name.remove_prefix(6);
  const std::string_view known = dtype_of_torch(name);
  if (!known.empty()) return std::string(known);
  return bad_metadata("its dtype " + quoted(name) +
                      " is none that a checkpoint holds; save it as another, or without it");
}

Status read_chunk(const Pickle& pickle, const PickleValue& chunk,
                  const std::map<PlaceKey, DcpPlace>& places, DcpEntry& entry) {
  const auto offsets = sizes_of(pickle, pickle.attribute(chunk, "offsets"));
  const auto sizes = sizes_of(pickle, pickle.attribute(chunk, "sizes"));
  if (!offsets || !sizes) return bad_metadata("the place of a part is none");
  const Box box{*offsets, *sizes};
  if (!num_elements(box.sizes) || !is_inside(box, entry.shape)) {
    return bad_metadata("a part lies outside of its shape");
  }
  const bool empty = *num_elements(box.sizes) == 0 && *num_elements(entry.shape) != 0;
  if (empty) return {};  // of a rank that had nothing of it
  const auto found = places.find({entry.name, *offsets});
  if (found == places.end()) return bad_metadata("no file has a part of it");
  entry.chunks.push_back({box, found->second});
  return {};
}

Status read_tensor(const Pickle& pickle, const PickleValue& value,
                   const std::map<PlaceKey, DcpPlace>& places, DcpEntry& entry) {
  STORMO_ASSIGN_OR_RETURN(entry.dtype, dtype_in(pickle, pickle.attribute(value, "properties")));
  const auto shape = sizes_of(pickle, pickle.attribute(value, "size"));
  if (!shape || !num_elements(*shape)) return bad_metadata("its shape is none");
  entry.shape = *shape;
  const PickleValue* chunks = pickle.attribute(value, "chunks");
  if (chunks == nullptr || chunks->kind != Kind::kList) return bad_metadata("it has no parts");
  for (const std::uint32_t i : chunks->items) {
    STORMO_RETURN_IF_ERROR(read_chunk(pickle, pickle.at(i), places, entry));
  }
  std::vector<Box> boxes;
  for (const DcpChunk& c : entry.chunks) boxes.push_back(c.box);
  if (cover_exactly(boxes, entry.shape)) return {};
  return bad_metadata(
      fmt::format("its {} parts leave out some of its elements, or hold some twice; save it again",
                  boxes.size()));
}

Status read_entry(const Pickle& pickle, const PickleValue& value,
                  const std::map<PlaceKey, DcpPlace>& places, DcpEntry& entry) {
  const std::string_view kind = pickle.class_name(value);
  if (kind == std::string(kModule) + ".TensorStorageMetadata") {
    return read_tensor(pickle, value, places, entry);
  }
  if (kind != std::string(kModule) + ".BytesStorageMetadata") {
    return bad_metadata("it is of the class " + quoted(kind) +
                        ", which is unknown; save plain or DTensor values");
  }
  const auto found = places.find({entry.name, std::nullopt});
  if (found == places.end()) return bad_metadata("no file has it");
  entry.place = found->second;
  return {};
}

/// The keys that led to each name, in the order of the state that was saved.
std::vector<std::pair<std::string, std::vector<std::string>>> paths_of(const Pickle& pickle,
                                                                       const PickleValue* data) {
  std::vector<std::pair<std::string, std::vector<std::string>>> out;
  if (data == nullptr || data->kind != Kind::kDict) return out;
  for (std::size_t i = 0; i + 1 < data->items.size(); i += 2) {
    const auto name = text_of(pickle.item(*data, i));
    const PickleValue& keys = *pickle.item(*data, i + 1);
    std::vector<std::string> path;
    for (std::size_t k = 0; keys.kind == Kind::kTuple && k < keys.items.size(); ++k) {
      const PickleValue& key = *pickle.item(keys, k);
      path.push_back(key.kind == Kind::kInteger ? std::to_string(key.integer)
                                                : std::string(key.text));
    }
    if (name && !path.empty()) out.emplace_back(*name, std::move(path));
  }
  return out;
}

}  // namespace

Result<std::vector<DcpEntry>> parse_dcp_metadata(std::string_view bytes) {
  STORMO_ASSIGN_OR_RETURN(const Pickle pickle, Pickle::parse(bytes));
  const PickleValue& root = pickle.root();
  if (pickle.class_name(root) != std::string(kModule) + ".Metadata") {
    return bad_metadata("it is a pickle of something else than torch.distributed.checkpoint's");
  }
  const PickleValue* state = pickle.attribute(root, "state_dict_metadata");
  if (state == nullptr || state->kind != Kind::kDict) return bad_metadata("it describes no state");
  STORMO_ASSIGN_OR_RETURN(const auto places,
                          places_of(pickle, pickle.attribute(root, "storage_data")));
  std::map<std::string, DcpEntry> by_name;
  std::vector<std::string> order;
  for (std::size_t i = 0; i + 1 < state->items.size(); i += 2) {
    const auto name = text_of(pickle.item(*state, i));
    if (!name) return bad_metadata("something in it has no name");
    DcpEntry entry{.name = *name, .path = {*name}};
    const Status read = read_entry(pickle, *pickle.item(*state, i + 1), places, entry);
    if (!read.ok()) return read.within(quoted(*name));
    if (!by_name.emplace(*name, std::move(entry)).second) {
      return bad_metadata(quoted(*name) + " is there twice");
    }
    order.push_back(*name);
  }
  std::vector<DcpEntry> entries;
  const auto take = [&](const std::string& name) -> DcpEntry* {
    auto node = by_name.extract(name);
    if (node.empty()) return nullptr;
    entries.push_back(std::move(node.mapped()));
    return &entries.back();
  };
  for (auto& [name, path] : paths_of(pickle, pickle.attribute(root, "planner_data"))) {
    if (DcpEntry* const entry = take(name)) entry->path = std::move(path);
  }
  for (const std::string& name : order) take(name);
  return entries;
}

namespace {

void write_properties(PickleWriter& p, const std::string& dtype) {
  p.class_name(kModule, "TensorProperties");
  p.empty_tuple();
  p.new_object();
  p.mark();
  p.class_name("torch", torch_of_dtype(dtype));
  p.class_name("torch.serialization", "_get_layout");
  p.mark();
  p.text("torch.strided");
  p.tuple();
  p.make_object();
  p.boolean(false);  // requires_grad
  p.class_name(kModule, "_MEM_FORMAT_ENCODING");
  p.mark();
  p.integer(0);  // contiguous
  p.tuple();
  p.make_object();
  p.boolean(false);  // pinned
  p.tuple();
  p.set_state();
}

/// An object of this class whose state is the dict of what `fill` writes.
template <class Fill>
void write_record(PickleWriter& p, const char* module, const char* name, const Fill& fill) {
  p.class_name(module, name);
  p.empty_tuple();
  p.new_object();
  p.empty_dict();
  p.mark();
  fill();
  p.set_all();
  p.set_state();
}

void write_entry(PickleWriter& p, const DcpEntry& e) {
  p.text(e.name);
  if (!e.is_tensor()) {
    p.class_name(kModule, "BytesStorageMetadata");
    p.empty_tuple();
    p.new_object();
    return;
  }
  write_record(p, kModule, "TensorStorageMetadata", [&] {
    p.text("properties");
    write_properties(p, e.dtype);
    p.text("size");
    p.sizes(e.shape);
    p.text("chunks");
    p.empty_list();
    p.mark();
    for (const DcpChunk& c : e.chunks) {
      write_record(p, kModule, "ChunkStorageMetadata", [&] {
        p.text("offsets");
        p.sizes(c.box.offsets);
        p.text("sizes");
        p.sizes(c.box.sizes);
      });
    }
    p.append_all();
  });
}

void write_place(PickleWriter& p, const DcpEntry& e, const Sizes* offsets, std::size_t index,
                 const DcpPlace& place) {
  write_record(p, kModule, "MetadataIndex", [&] {
    p.text("fqn");
    p.text(e.name);
    p.text("offset");
    offsets == nullptr ? p.none() : p.sizes(*offsets);
    p.text("index");
    offsets == nullptr ? p.none() : p.integer(static_cast<std::int64_t>(index));
  });
  write_record(p, kStorageModule, "_StorageInfo", [&] {
    p.text("relative_path");
    p.text(place.file);
    p.text("offset");
    p.integer(static_cast<std::int64_t>(place.offset));
    p.text("length");
    p.integer(static_cast<std::int64_t>(place.bytes));
  });
}

/// Keys of lists are numbers, those of dicts are texts: only a list has "param_groups" before it.
void write_path(PickleWriter& p, const DcpEntry& e) {
  p.text(e.name);
  p.mark();
  for (std::size_t i = 0; i < e.path.size(); ++i) {
    const bool in_list = i == 2 && e.path[1] == "param_groups";
    in_list ? p.integer(std::stoll(e.path[i])) : p.text(e.path[i]);
  }
  p.tuple();
}

}  // namespace

std::string format_dcp_metadata(const std::vector<DcpEntry>& entries) {
  PickleWriter p;
  write_record(p, kModule, "Metadata", [&] {
    p.text("state_dict_metadata");
    p.empty_dict();
    p.mark();
    for (const DcpEntry& e : entries) write_entry(p, e);
    p.set_all();
    p.text("planner_data");
    p.empty_dict();
    p.mark();
    for (const DcpEntry& e : entries) write_path(p, e);
    p.set_all();
    p.text("storage_data");
    p.empty_dict();
    p.mark();
    for (const DcpEntry& e : entries) {
      if (!e.is_tensor()) write_place(p, e, nullptr, 0, e.place);
      for (std::size_t i = 0; i < e.chunks.size(); ++i) {
        write_place(p, e, &e.chunks[i].box.offsets, i, e.chunks[i].place);
      }
    }
    p.set_all();
    p.text("storage_meta");
    p.none();
    p.text("version");
    p.text("1.0.0");
  });
  return std::move(p).finish();
}

}  // namespace stormo::checkpoint
