#include <stormo/checkpoint/pytorch/torch_archive.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include <stormo/checkpoint/format/box.h>
#include <stormo/checkpoint/pytorch/pickle_writer.h>

namespace stormo::checkpoint {
namespace {

using Kind = PickleValue::Kind;

constexpr std::uint64_t kMaxPickleBytes = 64u << 20;
constexpr std::string_view kPickleFile = "data.pkl";
constexpr std::string_view kRoot = "archive/";

/// A dtype: in safetensors files, in torch, and the class of its storage, if it has one of its own.
struct DType {
  std::string_view name, torch, storage;
};
constexpr std::array<DType, 16> kTypes = {{{"BOOL", "bool", "BoolStorage"},
                                           {"U8", "uint8", "ByteStorage"},
                                           {"I8", "int8", "CharStorage"},
                                           {"F8_E5M2", "float8_e5m2", ""},
                                           {"F8_E4M3", "float8_e4m3fn", ""},
                                           {"I16", "int16", "ShortStorage"},
                                           {"U16", "uint16", ""},
                                           {"F16", "float16", "HalfStorage"},
                                           {"BF16", "bfloat16", "BFloat16Storage"},
                                           {"I32", "int32", "IntStorage"},
                                           {"U32", "uint32", ""},
                                           {"F32", "float32", "FloatStorage"},
                                           {"F64", "float64", "DoubleStorage"},
                                           {"I64", "int64", "LongStorage"},
                                           {"U64", "uint64", ""},
                                           {"C64", "complex64", "ComplexFloatStorage"}}};
constexpr std::string_view kTorch = "torch.", kUntyped = "torch.storage.UntypedStorage";

Status no_tensor(std::string what) { return Status(Code::kCorrupt, std::move(what)); }

std::string_view without_torch(std::string_view name) {
  return name.starts_with(kTorch) ? name.substr(kTorch.size()) : std::string_view();
}

Result<std::vector<std::int64_t>> integers_of(const Pickle& pickle, const PickleValue& tuple) {
  std::vector<std::int64_t> out;
  if (tuple.kind != Kind::kTuple || tuple.items.size() > 64) return no_tensor("a shape is none");
  for (const std::uint32_t i : tuple.items) {
    if (pickle.at(i).kind != Kind::kInteger || pickle.at(i).integer < 0) {
      return no_tensor("a shape is none");
    }
    out.push_back(pickle.at(i).integer);
  }
  return out;
}

/// The last element of a tensor with elements; empty when that is beyond 2^64.
std::optional<std::uint64_t> last_element(const ArchivedTensor& t) {
  std::uint64_t last = t.first;
  for (std::size_t d = 0; d < t.shape.size(); ++d) {
    std::uint64_t step = 0;
    if (__builtin_mul_overflow(static_cast<std::uint64_t>(t.shape[d] - 1),
                               static_cast<std::uint64_t>(t.strides[d]), &step) ||
        __builtin_add_overflow(last, step, &last)) {
      return std::nullopt;
    }
  }
  return last;
}

bool in_order(const ArchivedTensor& t) {
  std::int64_t stride = 1;
  for (std::size_t d = t.shape.size(); d-- > 0;) {
    if (t.shape[d] != 1 && t.strides[d] != stride) return false;
    stride *= t.shape[d];
  }
  return true;
}

/// Copies the elements of one storage to their places in C order.
void gather(const ArchivedTensor& t, std::size_t width, const char* storage, char* out) {
  std::vector<std::int64_t> at(t.shape.size(), 0);
  const std::int64_t count = *num_elements(t.shape);
  std::uint64_t from = t.first;
  for (std::int64_t i = 0; i < count; ++i) {
    std::memcpy(out + static_cast<std::size_t>(i) * width, storage + from * width, width);
    for (std::size_t d = t.shape.size(); d-- > 0;) {
      from += static_cast<std::uint64_t>(t.strides[d]);
      if (++at[d] < t.shape[d]) break;
      from -= static_cast<std::uint64_t>(t.shape[d]) * static_cast<std::uint64_t>(t.strides[d]);
      at[d] = 0;
    }
  }
}

Status check_crc(const ZipEntry& entry, std::uint32_t crc) {
  if (entry.crc == 0 || entry.crc == crc) return {};  // 0: torch.serialization.set_crc32_options
  return Status(Code::kCorrupt, "its checksum is another: the file is damaged; copy it again");
}

/// The function that makes a tensor again, with what it takes after the storage.
struct Maker {
  std::string_view dtype;  ///< none: the storage has it
  const PickleValue* storage = nullptr;
  const PickleValue* arguments = nullptr;
};

Result<Maker> maker_of(const Pickle& pickle) {
  const PickleValue& root = pickle.root();
  const std::string_view name = pickle.class_name(root);
  const bool typed = name == "torch._utils._rebuild_tensor_v2";
  const bool plain = root.kind == Kind::kObject && root.items.size() == 2 &&
                     (typed || name == "torch._utils._rebuild_tensor_v3");
  if (!plain) {
    return no_tensor(name.empty() ? "it is no tensor"
                                  : "it is made by " + std::string(name) +
                                        ", which is no plain tensor: save plain or DTensor values");
  }
  Maker out{.storage = nullptr, .arguments = pickle.item(root, 1)};
  const std::size_t wanted = typed ? 6 : 7;
  if (out.arguments->items.size() != wanted) {
    return no_tensor("it is a view, such as a conjugate: save its resolve_conj().resolve_neg()");
  }
  out.storage = pickle.item(*out.arguments, 0);
  if (!typed) out.dtype = without_torch(pickle.class_name(*pickle.item(*out.arguments, 6)));
  const PickleValue* reference =
      out.storage->kind == Kind::kPersistent ? pickle.item(*out.storage, 0) : nullptr;
  if (reference == nullptr || reference->kind != Kind::kTuple || reference->items.size() != 5) {
    return no_tensor("its storage is none");
  }
  out.storage = reference;
  return out;
}

std::string_view dtype_of_storage(std::string_view storage) {
  for (const DType& t : kTypes) {
    if (!t.storage.empty() && t.storage == storage) return t.name;
  }
  return {};
}

}  // namespace

std::string_view dtype_of_torch(std::string_view name) {
  for (const DType& t : kTypes) {
    if (t.torch == name) return t.name;
  }
  return {};
}

std::string_view torch_of_dtype(std::string_view dtype) {
  for (const DType& t : kTypes) {
    if (t.name == dtype) return t.torch;
  }
  return {};
}

Result<TorchArchive> TorchArchive::open(std::uint64_t bytes, const ReadAt& read) {
  TorchArchive out;
  STORMO_ASSIGN_OR_RETURN(out.entries_, read_zip_entries(bytes, read));
  const auto is_pickle = [](const ZipEntry& e) {
    return e.name.ends_with("/" + std::string(kPickleFile));
  };
  const auto pickle = std::find_if(out.entries_.begin(), out.entries_.end(), is_pickle);
  if (pickle == out.entries_.end())
    return no_tensor("it has no data.pkl, as files of torch.save do");
  if (pickle->bytes > kMaxPickleBytes) return no_tensor("its data.pkl has more than 64 MiB");
  out.root_ = pickle->name.substr(0, pickle->name.size() - kPickleFile.size());
  out.pickle_.resize(static_cast<std::size_t>(pickle->bytes));
  STORMO_RETURN_IF_ERROR(read(pickle->begin, out.pickle_.data(), out.pickle_.size()));
  STORMO_RETURN_IF_ERROR(check_crc(*pickle, crc32_of(out.pickle_.data(), out.pickle_.size())));
  for (const ZipEntry& e : out.entries_) {
    if (e.name != out.root_ + "byteorder") continue;
    std::string order(static_cast<std::size_t>(std::min<std::uint64_t>(e.bytes, 6)), '\0');
    STORMO_RETURN_IF_ERROR(read(e.begin, order.data(), order.size()));
    if (e.bytes != 6 || order != "little") {
      return no_tensor("it was written on a big-endian machine; write it on a little-endian one");
    }
  }
  return out;
}

Result<ArchivedTensor> TorchArchive::tensor() const {
  STORMO_ASSIGN_OR_RETURN(const Pickle pickle, Pickle::parse(pickle_));
  STORMO_ASSIGN_OR_RETURN(const Maker maker, maker_of(pickle));
  const auto argument = [&](std::size_t i) -> const PickleValue& {
    return *pickle.item(*maker.arguments, i);
  };
  ArchivedTensor out;
  const std::string_view storage = pickle.class_name(*pickle.item(*maker.storage, 1));
  const bool untyped = storage == kUntyped;
  const std::string_view dtype =
      untyped ? dtype_of_torch(maker.dtype) : dtype_of_storage(without_torch(storage));
  if (dtype.empty()) {
    return no_tensor("its dtype " + std::string(untyped ? maker.dtype : storage) +
                     " is none that a checkpoint holds");
  }
  out.dtype = dtype;
  STORMO_ASSIGN_OR_RETURN(out.shape, integers_of(pickle, argument(2)));
  STORMO_ASSIGN_OR_RETURN(out.strides, integers_of(pickle, argument(3)));
  const PickleValue& first = argument(1);
  const auto count = num_elements(out.shape);
  if (!count || out.strides.size() != out.shape.size() || first.kind != Kind::kInteger ||
      first.integer < 0) {
    return no_tensor("a shape is none");
  }
  out.first = static_cast<std::uint64_t>(first.integer);
  const PickleValue& key = *pickle.item(*maker.storage, 2);
  const std::string file = root_ + "data/" + std::string(key.text);
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const ZipEntry& e) { return e.name == file; });
  if (found == entries_.end()) return no_tensor("it has no " + file);
  out.storage = *found;
  if (*count == 0) return out;
  const auto last = last_element(out);
  const std::uint64_t stored = out.storage.bytes / *safetensors_dtype_bytes(out.dtype);
  if (!last || *last >= stored || static_cast<std::uint64_t>(*count) > stored) {
    return no_tensor("its shape needs more values than there are");
  }
  return out;
}

Status read_values(const ArchivedTensor& tensor, const ReadAt& read, char* values) {
  const std::size_t width = *safetensors_dtype_bytes(tensor.dtype);
  const auto bytes = static_cast<std::size_t>(*num_elements(tensor.shape)) * width;
  if (bytes == 0) return {};
  if (in_order(tensor) && tensor.first == 0 && tensor.storage.bytes == bytes) {
    STORMO_RETURN_IF_ERROR(read(tensor.storage.begin, values, bytes));
    STORMO_RETURN_IF_ERROR(check_crc(tensor.storage, crc32_of(values, bytes)));
    return check_values(tensor.dtype, values, bytes);
  }
  const auto size = static_cast<std::size_t>(tensor.storage.bytes);
  const std::unique_ptr<char[]> storage(new (std::nothrow) char[size]);
  if (storage == nullptr) return Status(Code::kExhausted, "no memory for its values");
  STORMO_RETURN_IF_ERROR(read(tensor.storage.begin, storage.get(), size));
  STORMO_RETURN_IF_ERROR(check_crc(tensor.storage, crc32_of(storage.get(), size)));
  gather(tensor, width, storage.get(), values);
  return check_values(tensor.dtype, values, bytes);
}

namespace {

Result<std::uint64_t> write_parts(FileWriter& file, std::string_view pickle,
                                  const std::function<Status(ZipWriter&)>& write) {
  ZipWriter zip(file);
  const auto name = [](std::string_view of) { return std::string(kRoot) + std::string(of); };
  STORMO_RETURN_IF_ERROR(zip.add(name(kPickleFile), pickle));
  STORMO_RETURN_IF_ERROR(zip.add(name("byteorder"), "little"));
  if (write) {
    STORMO_RETURN_IF_ERROR(zip.begin(name("data/0")));
    STORMO_RETURN_IF_ERROR(write(zip));
    STORMO_RETURN_IF_ERROR(zip.end());
  }
  STORMO_RETURN_IF_ERROR(zip.add(name("version"), "3\n"));
  return zip.finish();
}

}  // namespace

Result<std::uint64_t> write_archive(FileWriter& file, std::string_view pickle) {
  return write_parts(file, pickle, {});
}

Result<std::uint64_t> write_tensor_archive(FileWriter& file, const std::string& dtype,
                                           const std::vector<std::int64_t>& shape,
                                           const std::function<Status(ZipWriter&)>& write) {
  const auto type =
      std::find_if(kTypes.begin(), kTypes.end(), [&](const DType& t) { return t.name == dtype; });
  const bool typed = !type->storage.empty();
  const std::int64_t count = *num_elements(shape);
  const auto width = static_cast<std::int64_t>(*safetensors_dtype_bytes(dtype));
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (std::size_t d = shape.size(); d-- > 1;) {
    strides[d - 1] = strides[d] * std::max<std::int64_t>(shape[d], 1);
  }
  PickleWriter p;
  p.class_name("torch._utils", typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
  p.mark();
  p.mark();
  p.text("storage");
  typed ? p.class_name("torch", type->storage) : p.class_name("torch.storage", "UntypedStorage");
  p.text("0");
  p.text("cpu");
  p.integer(typed ? count : count * width);
  p.tuple();
  p.persistent();
  p.integer(0);
  p.integers(shape);
  p.integers(strides);
  p.boolean(false);  // requires_grad
  p.class_name("collections", "OrderedDict");
  p.empty_tuple();
  p.make_object();
  if (!typed) p.class_name("torch", type->torch);
  p.tuple();
  p.make_object();
  return write_parts(file, std::move(p).finish(), write);
}

}  // namespace stormo::checkpoint
