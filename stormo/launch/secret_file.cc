#include <stormo/launch/secret_file.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <string_view>

namespace stormo::launch {

namespace {
constexpr std::size_t kDigits = 2 * transport::Secret::kBytes;
}

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

}  // namespace stormo::launch
