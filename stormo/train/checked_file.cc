#define XXH_INLINE_ALL
#include <stormo/train/checked_file.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include <stormo/base/check.h>

namespace stormo::train {

struct Hasher::State {
  XXH3_state_t xxh3;
};

Hasher::Hasher() : state_(std::make_unique<State>()) { XXH3_64bits_reset(&state_->xxh3); }
Hasher::~Hasher() = default;

void Hasher::add(const void* data, std::size_t bytes) {
  if (bytes > 0) XXH3_64bits_update(&state_->xxh3, data, bytes);
}

std::uint64_t Hasher::digest() const { return XXH3_64bits_digest(&state_->xxh3); }

std::string to_hex(std::uint64_t value) { return fmt::format("{:016x}", value); }

FileWriter::~FileWriter() {
  if (fd_ >= 0) ::close(fd_);
}

Status FileWriter::create(const std::string& path) {
  STORMO_CHECK(fd_ < 0, "one writer writes one file");
  path_ = path;
  fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
  return fd_ < 0 ? errno_error("create " + path) : ok_status();
}

Status FileWriter::write(const void* data, std::size_t bytes) {
  hasher_.add(data, bytes);
  bytes_ += bytes;
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::write(fd_, next, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_error("write " + path_);
    next += n;
    bytes -= static_cast<std::size_t>(n);
  }
  return ok_status();
}

Result<FileDigest> FileWriter::finish() {
  if (::fsync(fd_) != 0) return errno_error("sync " + path_);
  const int fd = std::exchange(fd_, -1);
  if (::close(fd) != 0) return errno_error("close " + path_);
  return FileDigest{bytes_, hasher_.digest()};
}

FileReader::~FileReader() {
  if (fd_ >= 0) ::close(fd_);
}

Status FileReader::open(const std::string& path) {
  STORMO_CHECK(fd_ < 0, "one reader reads one file");
  path_ = path;
  // Without O_NONBLOCK a pipe in the file's place would block here for ever.
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd_ < 0 && errno == ENOENT) return Status(Code::kNotFound, path + " does not exist");
  if (fd_ < 0 && errno == ELOOP) return Status(Code::kCorrupt, path + " is a link, not a file");
  if (fd_ < 0) return errno_error("open " + path);
  struct stat info {};
  if (::fstat(fd_, &info) != 0) return errno_error("stat " + path);
  if (!S_ISREG(info.st_mode)) return Status(Code::kCorrupt, path + " is not a regular file");
  size_ = static_cast<std::uint64_t>(info.st_size);
  return ok_status();
}

Status FileReader::read(std::uint64_t offset, void* data, std::size_t bytes) const {
  char* next = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::pread(fd_, next, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_error("read " + path_);
    if (n == 0) return Status(Code::kCorrupt, path_ + " is cut short");
    next += n;
    offset += static_cast<std::uint64_t>(n);
    bytes -= static_cast<std::size_t>(n);
  }
  return ok_status();
}

Result<FileDigest> digest_file(const std::string& path) {
  FileReader file;
  STORMO_RETURN_IF_ERROR(file.open(path));
  Hasher hasher;
  std::vector<char> block(std::size_t{1} << 20);
  for (std::uint64_t at = 0; at < file.size();) {
    const auto n =
        static_cast<std::size_t>(std::min<std::uint64_t>(block.size(), file.size() - at));
    STORMO_RETURN_IF_ERROR(file.read(at, block.data(), n));
    hasher.add(block.data(), n);
    at += n;
  }
  return FileDigest{file.size(), hasher.digest()};
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

Status sync_directory(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return errno_error("open " + path);
  const bool synced = ::fsync(fd) == 0;
  const Status failure = synced ? ok_status() : errno_error("sync " + path);
  ::close(fd);
  return failure;
}

}  // namespace stormo::train
