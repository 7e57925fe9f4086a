#include <stormo/checkpoint/file/safetensors_header.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

namespace stormo::checkpoint {
namespace {

using Json = nlohmann::ordered_json;
constexpr std::string_view kMetadata = "__metadata__";
constexpr std::size_t kMaxDims = 64;

Status bad_header(std::string message) { return Status(Code::kCorrupt, std::move(message)); }

/// Names come from the file, so they are escaped before they reach a terminal.
std::string in_quotes(const std::string& name) {
  const std::string text = Json(name).dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() <= 200 ? text : text.substr(0, 200) + "...";
}

/// Accepts exactly the shape {name: {dtype, shape, data_offsets}, __metadata__: {string: string}}
/// and stops at the first event that does not fit, so no document tree is ever built.
class HeaderHandler : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return reject("null has no place here"); }
  bool boolean(bool) override { return reject("a boolean has no place here"); }
  bool number_integer(std::int64_t) override { return reject("negative number"); }
  bool number_float(double, const std::string&) override { return reject("not a whole number"); }
  bool binary(Json::binary_t&) override { return reject("binary has no place here"); }

  bool number_unsigned(std::uint64_t value) override {
    if (depth_ != 3) return reject("a number has no place here");
    if (numbers_.size() == kMaxDims) return reject("more than 64 dimensions");
    numbers_.push_back(value);
    return true;
  }

  bool string(std::string& value) override {
    if (depth_ != 2) return reject("text has no place here");
    if (in_metadata_) {
      header_.metadata[field_] = value;
    } else if (field_ == "dtype") {
      entry_.dtype = value;
    } else {
      return reject("text has no place here");
    }
    return true;
  }

  bool start_object(std::size_t) override {
    if (depth_ >= 2) return reject("an object has no place here");
    ++depth_;
    return true;
  }

  bool key(std::string& name) override {
    if (depth_ == 1) {
      in_metadata_ = name == kMetadata;
      entry_ = {};
      entry_.name = name;
      fields_.clear();
      if (!names_.insert(name).second) return reject("name given twice");
      return true;
    }
    field_ = name;
    if (!fields_.insert(name).second) return reject(in_quotes(name) + " given twice");
    const bool known = name == "dtype" || name == "shape" || name == "data_offsets";
    return in_metadata_ || known || reject("unknown field " + in_quotes(name));
  }

  bool end_object() override {
    if (--depth_ != 1 || in_metadata_) return true;
    if (fields_.size() != 3) return reject("needs dtype, shape and data_offsets");
    header_.entries.push_back(std::move(entry_));
    return true;
  }

  bool start_array(std::size_t) override {
    if (depth_ != 2 || in_metadata_ || field_ == "dtype") return reject("a list has no place here");
    ++depth_;
    numbers_.clear();
    return true;
  }

  bool end_array() override {
    --depth_;
    return field_ == "shape" ? take_shape() : take_offsets();
  }

  bool parse_error(std::size_t at, const std::string&, const Json::exception&) override {
    return reject(fmt::format("no valid JSON at byte {}", at));
  }

  Status error() const {
    const std::string where = entry_.name.empty() ? "" : "tensor " + in_quotes(entry_.name) + ": ";
    return bad_header(where + (error_.empty() ? "no valid header" : error_));
  }
  SafetensorsHeader take() { return std::move(header_); }

 private:
  bool reject(std::string why) {
    if (error_.empty()) error_ = std::move(why);
    return false;
  }

  bool take_shape() {
    for (const std::uint64_t n : numbers_) {
      if (n > std::numeric_limits<std::int64_t>::max()) return reject("dimension out of range");
      entry_.shape.push_back(static_cast<std::int64_t>(n));
    }
    return true;
  }

  bool take_offsets() {
    if (numbers_.size() != 2) return reject("data_offsets needs two numbers");
    entry_.begin = numbers_[0];
    entry_.end = numbers_[1];
    return true;
  }

  int depth_ = 0;
  bool in_metadata_ = false;
  std::string field_;
  std::string error_;
  std::set<std::string> names_;
  std::set<std::string> fields_;
  std::vector<std::uint64_t> numbers_;
  SafetensorsEntry entry_;
  SafetensorsHeader header_;
};

/// Bytes that shape and dtype ask for. Dimensions of size 0 count as 1 for the overflow check,
/// because strides are products of the other dimensions.
std::optional<std::uint64_t> tensor_bytes(const SafetensorsEntry& e, std::size_t element_bytes) {
  std::uint64_t bytes = element_bytes;
  bool empty = false;
  for (const std::int64_t dim : e.shape) {
    empty = empty || dim == 0;
    const std::uint64_t factor = dim == 0 ? 1 : static_cast<std::uint64_t>(dim);
    if (bytes > std::numeric_limits<std::int64_t>::max() / factor) return std::nullopt;
    bytes *= factor;
  }
  return empty ? 0 : bytes;
}

Status check_entry(const SafetensorsEntry& e) {
  const auto element_bytes = safetensors_dtype_bytes(e.dtype);
  if (!element_bytes) return bad_header("unknown dtype " + in_quotes(e.dtype));
  if (e.end < e.begin) return bad_header("data_offsets end before they begin");
  const auto bytes = tensor_bytes(e, *element_bytes);
  if (!bytes) return bad_header("the size of its shape overflows");
  if (*bytes != e.end - e.begin) {
    return bad_header(fmt::format("shape and dtype need {} bytes, data_offsets span {}", *bytes,
                                  e.end - e.begin));
  }
  return ok_status();
}

}  // namespace

std::optional<std::size_t> safetensors_dtype_bytes(std::string_view dtype) {
  static constexpr std::array<std::pair<std::string_view, std::size_t>, 16> kBytes = {
      {{"BOOL", 1},
       {"U8", 1},
       {"I8", 1},
       {"F8_E5M2", 1},
       {"F8_E4M3", 1},
       {"I16", 2},
       {"U16", 2},
       {"F16", 2},
       {"BF16", 2},
       {"I32", 4},
       {"U32", 4},
       {"F32", 4},
       {"F64", 8},
       {"I64", 8},
       {"U64", 8},
       {"C64", 8}}};
  for (const auto& [name, bytes] : kBytes) {
    if (name == dtype) return bytes;
  }
  return std::nullopt;
}

Result<SafetensorsHeader> parse_safetensors_header(std::string_view json,
                                                   std::uint64_t data_bytes) {
  if (json.size() > kMaxSafetensorsHeaderBytes) return bad_header("header longer than 16 MiB");
  if (json.empty() || json.front() != '{') return bad_header("header does not begin with '{'");
  HeaderHandler handler;
  if (!nlohmann::json::sax_parse(json.begin(), json.end(), &handler)) return handler.error();
  SafetensorsHeader header = handler.take();
  std::sort(header.entries.begin(), header.entries.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  std::uint64_t covered = 0;
  for (const SafetensorsEntry& e : header.entries) {
    const std::string where = "tensor " + in_quotes(e.name);
    STORMO_RETURN_IF_ERROR(check_entry(e).within(where));
    if (e.begin != covered) {
      return bad_header(fmt::format("{}: begins at byte {}, the one before it ends at {}: {}",
                                    where, e.begin, covered,
                                    e.begin < covered ? "overlap" : "hole"));
    }
    covered = e.end;
  }
  if (covered != data_bytes) {
    return bad_header(
        fmt::format("its tensors take {} bytes, the file has {}: {}", covered, data_bytes,
                    covered > data_bytes ? "cut short" : "bytes that belong to nothing"));
  }
  return header;
}

Result<std::string> format_safetensors_header(SafetensorsHeader& header) {
  const auto width = [](const SafetensorsEntry& e) {
    return safetensors_dtype_bytes(e.dtype).value_or(0);
  };
  std::sort(header.entries.begin(), header.entries.end(), [&](const auto& a, const auto& b) {
    return width(a) != width(b) ? width(a) > width(b) : a.name < b.name;
  });
  // As text at once: a document that keeps the order looks a name up among all before it.
  std::string text = "{";
  std::uint64_t next = 0;
  try {
    if (!header.metadata.empty()) {
      text += fmt::format("\"{}\":{}", kMetadata, Json(header.metadata).dump());
    }
    for (SafetensorsEntry& e : header.entries) {
      const auto bytes = tensor_bytes(e, width(e));
      if (width(e) == 0 || !bytes) return invalid_argument("cannot store " + in_quotes(e.name));
      e.begin = next;
      e.end = next += *bytes;
      text += fmt::format(R"({}{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                          text.size() > 1 ? "," : "", Json(e.name).dump(), e.dtype,
                          fmt::join(e.shape, ","), e.begin, e.end);
    }
  } catch (const Json::type_error&) {
    return invalid_argument("a tensor's name is no UTF-8 text; rename it");
  }
  text += '}';
  // The 8 bytes of the length come first, so a multiple of 8 here aligns the data.
  text.append((8 - text.size() % 8) % 8, ' ');
  if (text.size() <= kMaxSafetensorsHeaderBytes) return text;
  return invalid_argument(fmt::format(
      "{} tensors need a header of {} bytes; readers of safetensors files take {} at most",
      header.entries.size(), text.size(), kMaxSafetensorsHeaderBytes));
}

}  // namespace stormo::checkpoint
