#include <stormo/data/image/idx.h>

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>

#include <stormo/data/data_file.h>

namespace stormo::data {
namespace {

constexpr std::uint8_t kUnsignedByte = 0x08;
constexpr std::size_t kPiece = 1u << 20;

Status corrupt(const std::string& path, std::string_view what) {
  return {Code::kCorrupt, fmt::format("{}: {}; fetch the file again", path, what)};
}

/// A file read through zlib, which passes on what is not compressed as it is.
class GzFile {
 public:
  static Result<GzFile> open(const std::string& path) {
    STORMO_ASSIGN_OR_RETURN(const auto opened, DataFile::open(path));
    STORMO_ASSIGN_OR_RETURN(Descriptor copy, opened->duplicate());
    gzFile file = gzdopen(copy.get(), "rb");
    if (file == nullptr) return Status(Code::kExhausted, "no memory to read " + path);
    copy.release();
    return GzFile(path, file);
  }

  /// Reads up to out_bytes; less only at the end of the data.
  Result<std::size_t> read(void* out, std::size_t out_bytes) {
    const int n = gzread(file_.get(), out, static_cast<unsigned>(out_bytes));
    int error = Z_OK;
    const char* text = gzerror(file_.get(), &error);
    if (error == Z_BUF_ERROR) return corrupt(path_, "the compressed data ends too early");
    if (error == Z_ERRNO) return errno_error("read " + path_);
    if (n < 0) return corrupt(path_, fmt::format("cannot be decompressed ({})", text));
    return static_cast<std::size_t>(n);
  }

 private:
  struct Close {
    void operator()(gzFile file) const { gzclose_r(file); }
  };
  GzFile(std::string path, gzFile file) : path_(std::move(path)), file_(file) {}

  std::string path_;
  std::unique_ptr<gzFile_s, Close> file_;
};

/// The four magic bytes: 0, 0, element type, number of dimensions.
Status check_magic(const std::string& path, const std::array<std::uint8_t, 4>& magic,
                   int num_dims) {
  if (magic[0] != 0 || magic[1] != 0) {
    return corrupt(path, fmt::format("is not an IDX file (its first bytes are {:02x} {:02x} {:02x} "
                                     "{:02x}, expected 00 00 08 {:02x})",
                                     magic[0], magic[1], magic[2], magic[3], num_dims));
  }
  if (magic[2] != kUnsignedByte) {
    return corrupt(path,
                   fmt::format("holds elements of type 0x{:02x}, expected 0x08 (bytes)", magic[2]));
  }
  if (magic[3] != num_dims) {
    return corrupt(path, fmt::format("has {} dimensions, expected {} (images have 3, labels 1)",
                                     magic[3], num_dims));
  }
  return {};
}

/// The dimensions that follow the magic, and their product.
Result<std::vector<std::int64_t>> read_dims(GzFile& file, const std::string& path, int num_dims,
                                            std::uint64_t& product) {
  std::vector<std::int64_t> dims;
  product = 1;
  for (int d = 0; d < num_dims; ++d) {
    std::array<std::uint8_t, 4> raw{};
    STORMO_ASSIGN_OR_RETURN(const std::size_t n, file.read(raw.data(), raw.size()));
    if (n < raw.size()) return corrupt(path, "ends inside its header");
    std::uint64_t value = 0;
    for (const std::uint8_t byte : raw) value = value << 8 | byte;
    if (value != 0 && product > std::numeric_limits<std::int64_t>::max() / value) {
      return corrupt(path, "claims more elements than any file can hold");
    }
    product *= value;
    dims.push_back(static_cast<std::int64_t>(value));
  }
  return dims;
}

}  // namespace

Result<IdxArray> read_idx(const std::string& path, int num_dims) {
  STORMO_ASSIGN_OR_RETURN(GzFile file, GzFile::open(path));
  std::array<std::uint8_t, 4> magic{};
  STORMO_ASSIGN_OR_RETURN(const std::size_t n, file.read(magic.data(), magic.size()));
  if (n < magic.size()) return corrupt(path, "ends inside its header");
  STORMO_RETURN_IF_ERROR(check_magic(path, magic, num_dims));

  IdxArray array;
  std::uint64_t expected = 0;
  STORMO_ASSIGN_OR_RETURN(array.dims, read_dims(file, path, num_dims, expected));
  while (array.values.size() < expected) {
    const std::size_t have = array.values.size();
    const std::size_t piece = std::min<std::uint64_t>(kPiece, expected - have);
    array.values.resize(have + piece);
    STORMO_ASSIGN_OR_RETURN(const std::size_t got, file.read(array.values.data() + have, piece));
    if (got < piece) {
      return corrupt(path,
                     fmt::format("is truncated: {} of {} bytes of data", have + got, expected));
    }
  }
  // One byte more than promised must not be there; asking for it also makes zlib check its
  // checksum.
  std::uint8_t extra = 0;
  STORMO_ASSIGN_OR_RETURN(const std::size_t trailing, file.read(&extra, 1));
  if (trailing != 0) {
    return corrupt(path, fmt::format("has bytes behind its {} bytes of data", expected));
  }
  return array;
}

}  // namespace stormo::data
