#include <stormo/data/data_file.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>

#include <stormo/base/file.h>

namespace stormo::data {

Result<std::shared_ptr<const DataFile>> DataFile::open(const std::string& path) {
  Result<Descriptor> opened = open_regular(path);
  const Code code = opened.status().code();
  if (code == Code::kNotFound || code == Code::kInvalidArgument) {
    return Status(
        code, opened.status().message() + (code == Code::kNotFound
                                               ? "; check the path (data.path in recipes)"
                                               : "; copy what it gives into a file and name that"));
  }
  STORMO_RETURN_IF_ERROR(opened.status());
  struct stat info {};
  if (::fstat(opened->get(), &info) != 0) return errno_error("look at " + path);
  return std::shared_ptr<const DataFile>(
      new DataFile(path, *std::move(opened), static_cast<std::uint64_t>(info.st_size)));
}

Status DataFile::read(std::uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t n = ::pread(file_.get(), out.data(), out.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_error("read " + path_);
    if (n == 0) {
      return Status(Code::kCorrupt,
                    path_ + " became shorter while it was read; leave it alone during a run");
    }
    out = out.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
  return {};
}

Result<std::string> DataFile::read_front(std::uint64_t most) const {
  std::string bytes;
  try {
    bytes.resize(std::min(size_, most));
  } catch (const std::exception&) {
    return Status(Code::kExhausted,
                  path_ + ": not enough memory for its " + std::to_string(size_) + " bytes");
  }
  STORMO_RETURN_IF_ERROR(read(0, std::as_writable_bytes(std::span(bytes))));
  return bytes;
}

Result<Descriptor> DataFile::duplicate() const {
  Descriptor copy(::fcntl(file_.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) return errno_error("open " + path_);
  return copy;
}

Result<std::string> read_data_file(const std::string& path) {
  STORMO_ASSIGN_OR_RETURN(const auto file, DataFile::open(path));
  return file->read_front();
}

}  // namespace stormo::data
