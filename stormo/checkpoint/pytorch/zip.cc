#include <stormo/checkpoint/pytorch/zip.h>

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

namespace stormo::checkpoint {
namespace {

constexpr std::uint32_t kLocal = 0x04034b50, kCentral = 0x02014b50, kEnd = 0x06054b50,
                        kDescriptor = 0x08074b50, kEnd64 = 0x06064b50, kLocator64 = 0x07064b50;
constexpr std::size_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22, kEnd64Bytes = 56,
                      kLocator64Bytes = 20;
constexpr std::uint64_t kMaxDirectoryBytes = 1 << 20;
constexpr std::uint32_t kIn64 = 0xffffffff;  // the number stands in a field of 64 bits
constexpr std::uint16_t kEncrypted = 1, kDescriptorFollows = 8, kUtf8 = 0x800;

Status bad_zip(std::string what) {
  return Status(Code::kCorrupt,
                "a zip archive that is no file of PyTorch's, or is damaged: " + std::move(what));
}

/// A number of so many bytes, little-endian. The caller has checked the size.
std::uint64_t number_at(std::string_view bytes, std::size_t at, std::size_t width) {
  std::uint64_t out = 0;
  for (std::size_t i = 0; i < width; ++i) {
    out |= std::uint64_t{static_cast<unsigned char>(bytes[at + i])} << (8 * i);
  }
  return out;
}

Result<std::string> read_some(const ReadAt& read, std::uint64_t offset, std::uint64_t bytes) {
  std::string out(static_cast<std::size_t>(bytes), '\0');
  STORMO_RETURN_IF_ERROR(read(offset, out.data(), out.size()));
  return out;
}

/// Where the list of files lies, before `end`.
struct Directory {
  std::uint64_t begin = 0, bytes = 0, end = 0;
};

Result<Directory> find_directory(std::uint64_t size, const ReadAt& read) {
  if (size < kEndBytes) return bad_zip("it is too short");
  STORMO_ASSIGN_OR_RETURN(const std::string last, read_some(read, size - kEndBytes, kEndBytes));
  if (number_at(last, 0, 4) != kEnd) return bad_zip("it has no end");
  Directory out{number_at(last, 16, 4), number_at(last, 12, 4), size - kEndBytes};
  if (size >= kEndBytes + kLocator64Bytes + kEnd64Bytes) {
    STORMO_ASSIGN_OR_RETURN(const std::string locator,
                            read_some(read, size - kEndBytes - kLocator64Bytes, kLocator64Bytes));
    const std::uint64_t at = number_at(locator, 8, 8);
    if (number_at(locator, 0, 4) == kLocator64) {
      if (at > size - kEndBytes - kLocator64Bytes - kEnd64Bytes) return bad_zip("no end of zip64");
      STORMO_ASSIGN_OR_RETURN(const std::string end64, read_some(read, at, kEnd64Bytes));
      if (number_at(end64, 0, 4) != kEnd64) return bad_zip("no end of zip64");
      out = {number_at(end64, 48, 8), number_at(end64, 40, 8), at};
    }
  }
  if (out.begin > out.end || out.bytes > out.end - out.begin) {
    return bad_zip("its directory lies outside of it");
  }
  if (out.bytes > kMaxDirectoryBytes) return bad_zip("more than 1 MiB of names");
  return out;
}

/// Fills the numbers that are too large for their field, in this order.
Status read_zip64(std::string_view extra, const std::vector<std::uint64_t*>& wanted) {
  if (wanted.empty()) return {};
  for (std::size_t at = 0; at + 4 <= extra.size();) {
    const std::uint64_t kind = number_at(extra, at, 2), bytes = number_at(extra, at + 2, 2);
    at += 4;
    if (bytes > extra.size() - at) break;
    if (kind == 1 && bytes >= 8 * wanted.size()) {
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        *wanted[i] = number_at(extra, at + 8 * i, 8);
      }
      return {};
    }
    at += static_cast<std::size_t>(bytes);
  }
  return bad_zip("a size is missing");
}

/// The position of the content follows from the header that is directly before it.
Status locate(ZipEntry& entry, std::uint64_t header, std::uint64_t limit, const ReadAt& read) {
  if (header > limit || limit - header < kLocalBytes) return bad_zip("a file lies outside of it");
  STORMO_ASSIGN_OR_RETURN(const std::string local, read_some(read, header, kLocalBytes));
  if (number_at(local, 0, 4) != kLocal) return bad_zip("a file is not where the directory says");
  const std::uint64_t names = number_at(local, 26, 2) + number_at(local, 28, 2);
  const std::uint64_t room = limit - header - kLocalBytes;
  if (names > room || entry.bytes > room - names) return bad_zip("a file lies outside of it");
  entry.begin = header + kLocalBytes + names;
  return {};
}

}  // namespace

std::uint32_t crc32_of(const void* data, std::size_t bytes, std::uint32_t crc) {
  static const std::array<std::uint32_t, 256> table = [] {
    std::array<std::uint32_t, 256> out{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t c = i;
      for (int bit = 0; bit < 8; ++bit) c = (c & 1) != 0 ? 0xedb88320u ^ (c >> 1) : c >> 1;
      out[i] = c;
    }
    return out;
  }();
  const auto* p = static_cast<const unsigned char*>(data);
  crc = ~crc;
  for (std::size_t i = 0; i < bytes; ++i) crc = table[(crc ^ p[i]) & 0xff] ^ (crc >> 8);
  return ~crc;
}

Result<std::vector<ZipEntry>> read_zip_entries(std::uint64_t size, const ReadAt& read) {
  STORMO_ASSIGN_OR_RETURN(const Directory found, find_directory(size, read));
  STORMO_ASSIGN_OR_RETURN(const std::string text, read_some(read, found.begin, found.bytes));
  std::vector<ZipEntry> entries;
  std::set<std::string, std::less<>> names;
  for (std::size_t at = 0; at < text.size();) {
    if (text.size() - at < kCentralBytes || number_at(text, at, 4) != kCentral) {
      return bad_zip("its directory ends in the middle");
    }
    const auto field = [&](std::size_t offset, std::size_t width) {
      return number_at(text, at + offset, width);
    };
    const std::uint64_t name = field(28, 2), extra = field(30, 2), comment = field(32, 2);
    if (name + extra + comment > text.size() - at - kCentralBytes) {
      return bad_zip("its directory ends in the middle");
    }
    const std::string_view rest = std::string_view(text).substr(at + kCentralBytes);
    ZipEntry entry{.name = std::string(rest.substr(0, static_cast<std::size_t>(name))),
                   .bytes = field(24, 4),
                   .crc = static_cast<std::uint32_t>(field(16, 4))};
    std::uint64_t packed = field(20, 4), header = field(42, 4);
    if (field(10, 2) != 0 || (field(8, 2) & kEncrypted) != 0) {
      return bad_zip("a file in it is compressed or encrypted");
    }
    std::vector<std::uint64_t*> large;
    for (std::uint64_t* n : {&entry.bytes, &packed, &header}) {
      if (*n == kIn64) large.push_back(n);
    }
    STORMO_RETURN_IF_ERROR(read_zip64(
        rest.substr(static_cast<std::size_t>(name), static_cast<std::size_t>(extra)), large));
    if (packed != entry.bytes) return bad_zip("a file in it has two sizes");
    STORMO_RETURN_IF_ERROR(locate(entry, header, found.begin, read));
    if (!names.insert(entry.name).second) return bad_zip("two files in it have one name");
    at += kCentralBytes + static_cast<std::size_t>(name + extra + comment);
    entries.push_back(std::move(entry));
  }
  return entries;
}

namespace {

void put_number(std::string& out, std::uint64_t value, std::size_t width) {
  for (std::size_t i = 0; i < width; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

/// From the version that is needed to the length of the extra field: the same in both headers.
void put_description(std::string& out, const ZipEntry& e, bool known) {
  put_number(out, 20, 2);
  put_number(out, kDescriptorFollows | kUtf8, 2);
  put_number(out, 0, 2);           // stored
  put_number(out, 0x00210000, 4);  // 1980-01-01: equal checkpoints are equal files
  put_number(out, known ? e.crc : 0, 4);
  put_number(out, known ? e.bytes : 0, 4);
  put_number(out, known ? e.bytes : 0, 4);
  put_number(out, e.name.size(), 2);
  put_number(out, 0, 2);
}

}  // namespace

Status ZipWriter::put(std::string_view bytes) {
  size_ += bytes.size();
  return file_.write(bytes);
}

Status ZipWriter::begin(std::string_view name) {
  entries_.push_back({.name = std::string(name), .begin = size_});
  std::string header;
  put_number(header, kLocal, 4);
  put_description(header, entries_.back(), false);
  return put(header + entries_.back().name);
}

Status ZipWriter::write(const void* data, std::size_t bytes) {
  entries_.back().bytes += bytes;
  entries_.back().crc = crc32_of(data, bytes, entries_.back().crc);
  return put({static_cast<const char*>(data), bytes});
}

// Size and checksum follow the content, which is not known before.
Status ZipWriter::end() {
  const ZipEntry& e = entries_.back();
  std::string descriptor;
  put_number(descriptor, kDescriptor, 4);
  put_number(descriptor, e.crc, 4);
  put_number(descriptor, e.bytes, 4);
  put_number(descriptor, e.bytes, 4);
  return put(descriptor);
}

Status ZipWriter::add(std::string_view name, std::string_view content) {
  STORMO_RETURN_IF_ERROR(begin(name));
  STORMO_RETURN_IF_ERROR(write(content.data(), content.size()));
  return end();
}

Result<std::uint64_t> ZipWriter::finish() {
  std::string text;
  for (const ZipEntry& e : entries_) {
    put_number(text, kCentral, 4);
    put_number(text, 20, 2);  // written by
    put_description(text, e, true);
    put_number(text, 0, 2);  // no comment
    put_number(text, 0, 2);  // of the first disk
    put_number(text, 0, 6);  // no attributes
    put_number(text, e.begin, 4);
    text += e.name;
  }
  const std::uint64_t begin = size_, bytes = text.size();
  put_number(text, kEnd, 4);
  put_number(text, 0, 4);  // one disk
  put_number(text, entries_.size(), 2);
  put_number(text, entries_.size(), 2);
  put_number(text, bytes, 4);
  put_number(text, begin, 4);
  put_number(text, 0, 2);  // no comment
  STORMO_RETURN_IF_ERROR(put(text));
  if (size_ > std::numeric_limits<std::uint32_t>::max()) {
    return invalid_argument("an archive of more than 4 GiB");
  }
  return size_;
}

}  // namespace stormo::checkpoint
