#include <stormo/launch/secret_file.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <string_view>

#include <stormo/base/file.h>

namespace stormo::launch {
namespace {

constexpr std::size_t kDigits = 2 * transport::Secret::kBytes;
std::string how_to_make() {
  return "; make a secret with: " + std::string(kMakeSecret) + ", and copy it to all hosts";
}

/// The text of a file without blanks and line ends at its end. Longer files are cut.
Result<std::string> read_short(const std::string& path, int fd) {
  std::string text(16 * kDigits, '\0');
  const ssize_t got = ::read(fd, text.data(), text.size());
  if (got < 0) return errno_error("read " + path);
  text.resize(static_cast<std::size_t>(got));
  text.resize(text.find_last_not_of(" \t\r\n") + 1);
  return text;
}

/// What is wrong with the text of a secret file; empty if nothing is. The text is never part of it.
std::string fault_of(std::string_view text) {
  if (text.empty()) return "is empty";
  const std::size_t digits =
      std::min(text.find_first_not_of("0123456789abcdefABCDEF"), text.size());
  if (digits == kDigits && text.size() > kDigits)
    return "has more than a secret: it has text after its 64 hexadecimal digits";
  if (digits < text.size()) return "has characters that are no hexadecimal digits";
  if (digits != kDigits)
    return "has " + std::to_string(digits) + " hexadecimal digits, a secret has " +
           std::to_string(kDigits);
  return {};
}

}  // namespace

Result<Descriptor> make_secret_file(const transport::Secret& secret) {
  Descriptor file(::memfd_create("stormo-secret", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.valid()) return errno_error("memory file for the job's secret");
  std::string digits = secret.to_hex();
  const ssize_t written = ::write(file.get(), digits.data(), digits.size());
  transport::cleanse(digits);
  if (written != static_cast<ssize_t>(digits.size())) return errno_error("write the job's secret");
  if (::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) !=
      0)
    return errno_error("seal the job's secret");
  return file;
}

Result<transport::Secret> take_secret(int descriptor) {
  const Descriptor file(descriptor);
  std::string digits(kDigits, '\0');
  // Positioned: all ranks of a host share one file offset. A pipe has none and is read in order.
  ssize_t got = ::pread(file.get(), digits.data(), digits.size(), 0);
  if (got < 0 && errno == ESPIPE) got = ::read(file.get(), digits.data(), digits.size());
  if (got < 0)
    return errno_error(
        "cannot read the job's secret; the descriptor must reach this process open, and be read "
        "once");
  auto secret = transport::Secret::from_hex({digits.data(), static_cast<std::size_t>(got)});
  transport::cleanse(digits);
  return secret;
}

Result<transport::Secret> read_secret_file(const std::string& path) {
  const Result<Descriptor> file = open_regular(path);
  if (!file.ok()) return invalid_argument(file.status().message() + how_to_make());
  struct stat info {};
  if (::fstat(file->get(), &info) != 0) return errno_error("look at " + path);
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return invalid_argument(path + " can be read by others; chmod 600 it");
  }
  STORMO_ASSIGN_OR_RETURN(std::string text, read_short(path, file->get()));
  const std::string fault = fault_of(text);
  auto secret = fault.empty() ? transport::Secret::from_hex(text)
                              : invalid_argument(path + " " + fault + how_to_make());
  transport::cleanse(text);
  return secret;
}

}  // namespace stormo::launch
