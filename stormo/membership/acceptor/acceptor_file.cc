#include <stormo/membership/acceptor/acceptor_file.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <stormo/base/file.h>
#include <stormo/membership/acceptor/register_wire.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

namespace stormo::membership {
namespace {

constexpr std::string_view kMagic = "stormo register 1\n";  // with the version of this format
constexpr std::size_t kChecksumBytes = 8;                   // at the end, of all before
constexpr const char* kFileName = "/register";

std::string checksum_of(std::string_view bytes) {
  return transport::encode(std::uint64_t{XXH3_64bits(bytes.data(), bytes.size())});
}

/// Empty when the file does not exist.
Result<std::optional<std::string>> read_file(const std::string& path) {
  const Result<Descriptor> file = open_regular(path);
  if (file.status().code() == Code::kNotFound) return std::optional<std::string>();
  if (!file.ok()) return file.status();
  struct stat info {};
  if (::fstat((*file).get(), &info) != 0) return errno_error("look at " + path);
  const auto size = static_cast<std::size_t>(info.st_size);
  std::string bytes(std::min(size, kMaxRegisterBytes) + 1, '\0');
  std::size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t n = ::read((*file).get(), bytes.data() + filled, bytes.size() - filled);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_error("read " + path);
    if (n == 0) break;
    filled += static_cast<std::size_t>(n);
  }
  bytes.resize(filled);
  return std::optional(std::move(bytes));
}

}  // namespace

std::string AcceptorName::text() const {
  return fmt::format("acceptor {} of {} of job {}", index, count, job);
}

void fields(auto& visit, transport::Like<AcceptorName> auto& name) {
  visit("acceptor", transport::at_most(kMaxJobBytes, name.job), name.index, name.count);
}

namespace {

struct Content {
  AcceptorName name;
  protocol::AcceptorState state;
};
void fields(auto& visit, transport::Like<Content> auto& content) {
  visit("file of an acceptor", content.name, content.state);
}

Result<Content> parse(const std::string& path, std::string_view bytes) {
  const std::string remedy =
      "this acceptor must not vote any more; the job goes on while a majority of the others is "
      "left, else start it anew from a checkpoint";
  if (bytes.size() < kChecksumBytes || bytes.size() > kMaxRegisterBytes ||
      checksum_of(bytes.substr(0, bytes.size() - kChecksumBytes)) !=
          bytes.substr(bytes.size() - kChecksumBytes)) {
    return Status(Code::kCorrupt, fmt::format("{} is damaged ({} bytes, wrong checksum): {}", path,
                                              bytes.size(), remedy));
  }
  bytes.remove_suffix(kChecksumBytes);
  if (!bytes.starts_with(kMagic)) {
    return Status(Code::kRefused,
                  fmt::format("{} was not written by this version of Stormo; run the job to its "
                              "end with the version that began it",
                              path));
  }
  bytes.remove_prefix(kMagic.size());
  const Result<Content> content = transport::decode<Content>("file of an acceptor", bytes);
  return content.ok() ? content : content.status().within(path);
}

}  // namespace

Status AcceptorFile::lock() {
  lock_ = Descriptor(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!lock_.valid()) return errno_error("open " + folder_);
  // on file systems without locks the name in the file has to do
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return {};
  return invalid_argument(
      fmt::format("{} is in use by another acceptor; give each one a folder of its own", folder_));
}

Result<AcceptorFile> AcceptorFile::create(const std::string& folder, const AcceptorName& name,
                                          Crash crash) {
  if (name.job.empty() || name.job.size() > kMaxJobBytes || name.index < 0 ||
      name.index >= name.count) {
    return invalid_argument(fmt::format("there is no {}", name.text()));
  }
  if (::mkdir(folder.c_str(), 0700) == 0) {
    const std::size_t slash = folder.find_last_of('/');
    STORMO_RETURN_IF_ERROR(
        sync_path(slash == std::string::npos ? "." : folder.substr(0, slash + 1)));
  } else if (errno != EEXIST) {
    return errno_error("create " + folder);
  }
  AcceptorFile file(folder, name, crash);
  STORMO_RETURN_IF_ERROR(file.lock());
  STORMO_ASSIGN_OR_RETURN(const auto before, read_file(folder + kFileName));
  if (before) {
    return invalid_argument(fmt::format(
        "{}{} exists: it is the register of a job that may go on. Remove it if that job has ended",
        folder, kFileName));
  }
  STORMO_RETURN_IF_ERROR(file.save({}));
  return file;
}

Result<AcceptorFile> AcceptorFile::open(const std::string& folder, const AcceptorName& name) {
  AcceptorFile file(folder, name, Crash::kIsSurvived);
  STORMO_RETURN_IF_ERROR(file.lock());
  const std::string path = folder + kFileName;
  STORMO_ASSIGN_OR_RETURN(const auto bytes, read_file(path));
  if (!bytes) {
    return Status(Code::kNotFound,
                  fmt::format("{} does not exist: an acceptor that has lost its state must not "
                              "vote; the job goes on while a majority of the others is left",
                              path));
  }
  STORMO_ASSIGN_OR_RETURN(Content content, parse(path, *bytes));
  if (content.name != name) {
    return invalid_argument(
        fmt::format("{} is that of {}, not of {}", path, content.name.text(), name.text()));
  }
  file.state_ = std::move(content.state);
  return file;
}

Status AcceptorFile::write_new(const std::string& path, const std::string& bytes) const {
  (void)::unlink(path.c_str());  // left by a crash
  const Descriptor file(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid()) return errno_error("create " + path);
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t n = ::write(file.get(), bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_error("write " + path);
    done += static_cast<std::size_t>(n);
  }
  return !syncs_ || ::fsync(file.get()) == 0 ? ok_status() : errno_error("sync " + path);
}

Status AcceptorFile::save(const protocol::AcceptorState& state) {
  std::string bytes(kMagic);
  bytes += transport::encode(Content{.name = name_, .state = state});
  bytes += checksum_of(bytes);
  const std::string path = folder_ + kFileName, fresh = path + ".new";
  STORMO_RETURN_IF_ERROR(write_new(fresh, bytes));
  if (::rename(fresh.c_str(), path.c_str()) != 0) return errno_error("replace " + path);
  if (syncs_ && ::fsync(lock_.get()) != 0) return errno_error("sync " + folder_);
  state_ = state;
  return {};
}

}  // namespace stormo::membership
