#include <stormo/base/npy_header.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <optional>
#include <string_view>

namespace stormo {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kMaxHeader = 1u << 16;
constexpr std::size_t kMaxDims = 64;  // NumPy's own limit
constexpr std::array<std::string_view, 8> kTypes = {"u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8"};

Status corrupt(std::string_view what) {
  return {Code::kCorrupt, fmt::format("{}; write the array again with numpy.save", what)};
}

/// Reads the dictionary of a header, a small part of Python's literals:
/// {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
class Literal {
 public:
  explicit Literal(std::string_view text) : rest_(text) {}

  bool take(std::string_view token) {
    skip_space();
    if (!rest_.starts_with(token)) return false;
    rest_.remove_prefix(token.size());
    return true;
  }
  std::optional<std::string> take_string() {
    skip_space();
    if (rest_.empty() || (rest_[0] != '\'' && rest_[0] != '"')) return std::nullopt;
    const std::size_t end = rest_.find(rest_[0], 1);
    if (end == std::string_view::npos) return std::nullopt;
    std::string text(rest_.substr(1, end - 1));
    rest_.remove_prefix(end + 1);
    return text;
  }
  std::optional<std::vector<std::int64_t>> take_shape() {
    std::vector<std::int64_t> shape;
    if (!take("(")) return std::nullopt;
    while (!take(")")) {
      skip_space();
      std::int64_t size = -1;
      const auto [end, failed] = std::from_chars(rest_.begin(), rest_.end(), size);
      if (failed != std::errc() || size < 0 || shape.size() == kMaxDims) return std::nullopt;
      rest_.remove_prefix(static_cast<std::size_t>(end - rest_.begin()));
      shape.push_back(size);
      if (!take(",") && !rest_.starts_with(')')) return std::nullopt;
    }
    return shape;
  }
  bool at_end() {
    skip_space();
    return rest_.empty();
  }

 private:
  void skip_space() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(" \n\t"), rest_.size()));
  }
  std::string_view rest_;
};

struct Fields {
  std::optional<std::string> descr;
  std::optional<bool> fortran_order;
  std::optional<std::vector<std::int64_t>> shape;
};

/// False when the text is anything but a dictionary of these three, each once.
bool parse_fields(std::string_view text, Fields& fields) {
  Literal literal(text);
  if (!literal.take("{")) return false;
  while (!literal.take("}")) {
    const auto key = literal.take_string();
    if (!key || !literal.take(":")) return false;
    if (*key == "descr" && !fields.descr) {
      fields.descr = literal.take_string();
      if (!fields.descr) return false;
    } else if (*key == "fortran_order" && !fields.fortran_order) {
      if (literal.take("True")) {
        fields.fortran_order = true;
      } else if (literal.take("False")) {
        fields.fortran_order = false;
      } else {
        return false;
      }
    } else if (*key == "shape" && !fields.shape) {
      fields.shape = literal.take_shape();
      if (!fields.shape) return false;
    } else {
      return false;
    }
    if (!literal.take(",")) {
      if (!literal.take("}")) return false;
      break;
    }
  }
  return literal.at_end() && fields.descr && fields.fortran_order && fields.shape;
}

/// Where the text of a header begins, and how long it says to be, of a file's first
/// kNpyLengthBytes.
struct HeaderPlace {
  std::size_t begin = 0, length = 0;
};

HeaderPlace header_place(std::string_view first) {
  const std::size_t front = kMagic.size() + 2;
  HeaderPlace place{.begin = front + (first[kMagic.size()] == 1 ? 2 : 4)};
  for (std::size_t i = place.begin; i-- > front;) {
    place.length = place.length << 8 | static_cast<unsigned char>(first[i]);
  }
  return place;
}

/// The text between the fixed front and the elements; moves `begin` to the elements.
Result<std::string_view> header_text(std::span<const std::byte> file, std::size_t& begin) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  if (!text.starts_with(kMagic)) return corrupt("is not a .npy file");
  if (text.size() < kNpyLengthBytes) return corrupt("ends inside its header");
  const int major = static_cast<unsigned char>(text[kMagic.size()]);
  if (major < 1 || major > 3) {
    return corrupt(fmt::format("is of format version {}, known are 1 to 3", major));
  }
  const HeaderPlace place = header_place(text);
  if (place.length > kMaxHeader || place.length > text.size() - place.begin) {
    return corrupt(fmt::format("its header claims {} bytes", place.length));
  }
  begin = place.begin + place.length;
  return text.substr(place.begin, place.length);
}

Status check_size(const NpyHeader& header, std::uint64_t file_bytes) {
  const auto width = static_cast<std::uint64_t>(header.dtype[1] - '0');
  // sizes of which one is 0 are multiplied too: whoever uses some of them must not overflow
  constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
  std::uint64_t bytes = width;
  for (const std::int64_t size : header.shape) {
    const auto n = static_cast<std::uint64_t>(size);
    if (n == 0) continue;
    if (bytes > kMost / n) return corrupt("claims more elements than any file can hold");
    bytes *= n;
  }
  if (std::ranges::count(header.shape, 0) > 0) bytes = 0;
  if (header.begin % width != 0) return corrupt("its elements are not aligned");
  if (bytes == file_bytes - header.begin) return {};
  return corrupt(fmt::format("holds {} bytes of elements, its header promises {}",
                             file_bytes - header.begin, bytes));
}

}  // namespace

std::size_t npy_front_bytes(std::span<const std::byte> first) {
  if (first.size() < kNpyLengthBytes) return kNpyLengthBytes;
  const HeaderPlace place =
      header_place({reinterpret_cast<const char*>(first.data()), first.size()});
  return std::clamp(place.begin + place.length, kNpyLengthBytes, kMaxNpyFront);
}

Result<NpyHeader> parse_npy_header(std::span<const std::byte> front, std::uint64_t file_bytes) {
  NpyHeader header;
  STORMO_ASSIGN_OR_RETURN(const std::string_view text, header_text(front, header.begin));
  Fields fields;
  if (!parse_fields(text, fields)) {
    return corrupt(
        "its header is no dictionary of descr, fortran_order and shape, or holds "
        "records, which are not read");
  }
  const std::string& descr = *fields.descr;
  if (descr.starts_with('>')) {
    return invalid_argument("is big endian; save a.astype(a.dtype.newbyteorder('<'))");
  }
  const bool marked = descr.size() == 3 && (descr[0] == '<' || descr[0] == '|');
  if (!marked || std::ranges::find(kTypes, descr.substr(1)) == kTypes.end()) {
    return invalid_argument(
        fmt::format("holds elements of type '{}'; save a.astype('f4') or a.astype('i8')", descr));
  }
  if (*fields.fortran_order && fields.shape->size() > 1) {
    return invalid_argument("is in Fortran order; save numpy.ascontiguousarray(a)");
  }
  header.dtype = descr.substr(1);
  header.shape = std::move(*fields.shape);
  STORMO_RETURN_IF_ERROR(check_size(header, file_bytes));
  return header;
}

}  // namespace stormo
