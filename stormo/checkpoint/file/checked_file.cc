#define XXH_INLINE_ALL
#include <stormo/checkpoint/file/checked_file.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include <stormo/base/check.h>
#include <stormo/base/file.h>

namespace stormo::checkpoint {
namespace {

namespace fs = std::filesystem;
constexpr std::size_t kPieceBytes = 1u << 20;  // a disk is fastest with; fits into a core's cache
constexpr std::uint64_t kMaxBlockBytes = 16u << 20;  // that are held in memory

Status damaged(const std::string& path, const FileDigest& expected, std::size_t block) {
  const std::uint64_t begin = block * expected.block_bytes;
  return Status(
      Code::kCorrupt,
      fmt::format("{}: the checksum of bytes {} to {} differs from the manifest's: damaged", path,
                  begin, std::min(begin + expected.block_bytes, expected.bytes)));
}

/// Whether this process has not asked about the folder before.
bool is_first_time(const fs::path& folder) {
  static std::mutex mutex;
  static std::set<std::string> known;
  const std::lock_guard lock(mutex);
  return known.insert(folder).second;
}

/// Of a folder that was there already: whoever made it and those above it, their names need not be
/// on the disk. What may not be synced was not made by this user.
void sync_names_above(const fs::path& folder) {
  struct stat here {
  }, above{};
  if (!is_first_time(folder) || ::stat(folder.c_str(), &here) != 0) return;
  for (fs::path p = folder; p != p.root_path(); p = p.parent_path()) {
    if (::stat(p.parent_path().c_str(), &above) != 0 || above.st_dev != here.st_dev) return;
    static_cast<void>(sync_path(p.parent_path()));
  }
}

}  // namespace

struct Hasher::State {
  XXH3_state_t xxh3;
};

Hasher::Hasher() : state_(std::make_unique<State>()) { XXH3_64bits_reset(&state_->xxh3); }
Hasher::~Hasher() = default;

void Hasher::add(const void* data, std::size_t bytes) {
  if (bytes > 0) XXH3_64bits_update(&state_->xxh3, data, bytes);
}

std::uint64_t Hasher::digest() const { return XXH3_64bits_digest(&state_->xxh3); }
void Hasher::reset() { XXH3_64bits_reset(&state_->xxh3); }

std::string to_hex(std::uint64_t value) { return fmt::format("{:016x}", value); }

Status FileWriter::create(const std::string& path) {
  STORMO_CHECK(!file_.valid(), "one writer writes one file");
  path_ = path;
  file_ =
      Descriptor(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666));
  return file_.valid() ? ok_status() : errno_error("create " + path);
}

Status FileWriter::write(const void* data, std::size_t bytes) {
  const char* next = static_cast<const char*>(data);
  if (bytes < kPieceBytes) {
    pending_.append(next, bytes);
    return pending_.size() < kPieceBytes ? ok_status() : flush();
  }
  STORMO_RETURN_IF_ERROR(flush());
  return append(next, bytes);
}

Status FileWriter::flush() {
  const Status written = append(pending_.data(), pending_.size());
  pending_.clear();
  return written;
}

// In pieces that are still in the cache when they are written after they were hashed.
Status FileWriter::append(const char* data, std::size_t bytes) {
  while (bytes > 0) {
    const std::uint64_t in_block = digest_.bytes % digest_.block_bytes;
    const auto n =
        std::min({bytes, kPieceBytes, static_cast<std::size_t>(digest_.block_bytes - in_block)});
    hasher_.add(data, n);
    for (std::size_t done = 0; done < n;) {
      const ssize_t written = ::write(file_.get(), data + done, n - done);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return errno_error("write " + path_);
      done += static_cast<std::size_t>(written);
    }
    data += n;
    bytes -= n;
    digest_.bytes += n;
    if (digest_.bytes % digest_.block_bytes == 0) {
      digest_.blocks.push_back(hasher_.digest());
      hasher_.reset();
    }
  }
  return ok_status();
}

Result<FileDigest> FileWriter::finish() {
  STORMO_RETURN_IF_ERROR(flush());
  if (digest_.bytes % digest_.block_bytes != 0) digest_.blocks.push_back(hasher_.digest());
  if (::fsync(file_.get()) != 0) return errno_error("sync " + path_);
  if (::close(file_.release()) != 0) return errno_error("close " + path_);
  return digest_;
}

Status FileReader::open(const std::string& path) {
  STORMO_CHECK(!file_.valid(), "one reader reads one file");
  path_ = path;
  // Without O_NONBLOCK a pipe in the file's place would block here for ever.
  file_ = Descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file_.valid()) {
    if (errno == ENOENT) return Status(Code::kNotFound, path + " does not exist");
    if (errno == ELOOP) return Status(Code::kCorrupt, path + " is a link, not a file");
    return errno_error("open " + path);
  }
  struct stat info {};
  if (::fstat(file_.get(), &info) != 0) return errno_error("stat " + path);
  if (!S_ISREG(info.st_mode)) return Status(Code::kCorrupt, path + " is not a regular file");
  size_ = static_cast<std::uint64_t>(info.st_size);
  return ok_status();
}

Status FileReader::read(std::uint64_t offset, void* data, std::size_t bytes) const {
  char* next = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::pread(file_.get(), next, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_error("read " + path_);
    if (n == 0) return Status(Code::kCorrupt, path_ + " is cut short");
    next += n;
    offset += static_cast<std::uint64_t>(n);
    bytes -= static_cast<std::size_t>(n);
  }
  return ok_status();
}

Status VerifiedFile::open(const std::string& path, const FileDigest& expected) {
  path_ = path;
  expected_ = expected;
  const Status opened = file_.open(path);
  if (!opened.ok()) return Status(Code::kCorrupt, opened.message());
  if (file_.size() != expected.bytes) {
    return Status(Code::kCorrupt, fmt::format("{} has {} bytes, its manifest says {}: damaged",
                                              path, file_.size(), expected.bytes));
  }
  if (expected.block_bytes > kMaxBlockBytes) {
    STORMO_RETURN_IF_ERROR(verify());
    verified_ = true;
  }
  return ok_status();
}

Status VerifiedFile::verify() {
  STORMO_ASSIGN_OR_RETURN(const FileDigest found, digest_file(path_, expected_.block_bytes));
  for (std::size_t i = 0; i < expected_.blocks.size() && found.bytes == expected_.bytes; ++i) {
    if (found.blocks[i] != expected_.blocks[i]) return damaged(path_, expected_, i);
  }
  return found == expected_ ? ok_status() : damaged(path_, expected_, 0);
}

Status VerifiedFile::read_block(std::size_t index, char* into) {
  const std::uint64_t begin = index * expected_.block_bytes;
  const std::uint64_t end = std::min(begin + expected_.block_bytes, expected_.bytes);
  Hasher hasher;
  for (std::uint64_t at = begin; at < end; at += kPieceBytes) {
    const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(kPieceBytes, end - at));
    STORMO_RETURN_IF_ERROR(file_.read(at, into + (at - begin), n));
    hasher.add(into + (at - begin), n);
  }
  return hasher.digest() == expected_.blocks[index] ? ok_status()
                                                    : damaged(path_, expected_, index);
}

Status VerifiedFile::read(std::uint64_t offset, void* data, std::size_t bytes) {
  if (offset > size() || bytes > size() - offset) {
    return Status(Code::kCorrupt, path_ + " is cut short");
  }
  if (verified_) return file_.read(offset, data, bytes);
  char* next = static_cast<char*>(data);
  while (bytes > 0) {
    const auto index = static_cast<std::size_t>(offset / expected_.block_bytes);
    const std::uint64_t begin = index * expected_.block_bytes;
    const auto length = static_cast<std::size_t>(
        std::min<std::uint64_t>(expected_.block_bytes, expected_.bytes - begin));
    const auto skip = static_cast<std::size_t>(offset - begin);
    const std::size_t n = std::min(bytes, length - skip);
    if (n == length) {
      STORMO_RETURN_IF_ERROR(read_block(index, next));
    } else {
      if (block_index_ != index) {
        block_index_ = SIZE_MAX;
        block_.resize(length);
        STORMO_RETURN_IF_ERROR(read_block(index, block_.data()));
        block_index_ = index;
      }
      std::memcpy(next, block_.data() + skip, n);
    }
    next += n;
    offset += n;
    bytes -= n;
  }
  return ok_status();
}

Result<FileDigest> digest_file(const std::string& path, std::uint64_t block_bytes) {
  FileReader file;
  STORMO_RETURN_IF_ERROR(file.open(path));
  FileDigest digest{.bytes = file.size(), .block_bytes = block_bytes};
  Hasher hasher;
  std::vector<char> piece(kPieceBytes);
  for (std::uint64_t at = 0; at < file.size();) {
    const std::uint64_t end = std::min(file.size(), (at / block_bytes + 1) * block_bytes);
    const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(kPieceBytes, end - at));
    STORMO_RETURN_IF_ERROR(file.read(at, piece.data(), n));
    hasher.add(piece.data(), n);
    at += n;
    if (at == end) {
      digest.blocks.push_back(hasher.digest());
      hasher.reset();
    }
  }
  return digest;
}

Result<std::string> read_text_file(const std::string& path, std::uint64_t max_bytes) {
  FileReader file;
  STORMO_RETURN_IF_ERROR(file.open(path));
  if (file.size() > max_bytes) {
    return Status(Code::kCorrupt, fmt::format("{} has more than {} bytes", path, max_bytes));
  }
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  STORMO_RETURN_IF_ERROR(file.read(0, text.data(), text.size()));
  return text;
}

Status sync_directory(const std::string& path) { return sync_path(path); }

Status create_directories(const std::string& path) {
  const fs::path wanted = fs::absolute(path).lexically_normal();
  fs::path folder, there;
  for (const fs::path& name : wanted) {
    if (name.empty()) continue;  // behind a slash at the end
    const std::string parent = folder;
    folder /= name;
    // mkdir would say of a folder on a read-only file system that it is read-only.
    std::error_code ignored;
    if (fs::is_directory(folder, ignored)) {
      there = folder;
      continue;
    }
    if (::mkdir(folder.c_str(), 0777) == 0) {
      STORMO_RETURN_IF_ERROR(sync_path(parent));
      static_cast<void>(is_first_time(folder));
    } else if (errno != EEXIST || !fs::is_directory(folder)) {
      return errno_error("create " + folder.string());
    }
  }
  sync_names_above(there);
  return ok_status();
}

}  // namespace stormo::checkpoint
