#include <stormo/comm/job/claims.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <utility>

#include <stormo/base/printable.h>
#include <stormo/base/text.h>

namespace stormo::comm {
namespace {

/// In the order of the text.
constexpr std::array kFields = {&Claims::kernel, &Claims::user,      &Claims::processes,
                                &Claims::mounts, &Claims::network,   &Claims::pid,
                                &Claims::socket, &Claims::secret_by, &Claims::host};

std::string boot_id() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

std::string own_namespace(const char* kind) {
  struct stat info {};
  const std::string path = fmt::format("/proc/self/ns/{}", kind);
  return ::stat(path.c_str(), &info) == 0 ? std::to_string(info.st_ino) : std::string();
}

}  // namespace

Claims Claims::own(const transport::JobSettings& settings, std::string socket) {
  const std::string_view by = settings.trust_store ? kByTrust : std::string_view();
  return {.kernel = boot_id(),
          .user = std::to_string(::geteuid()),
          .processes = own_namespace("pid"),
          .mounts = own_namespace("mnt"),
          .network = own_namespace("net"),
          .pid = std::to_string(::getpid()),
          .secret_by = std::string(settings.rendezvous_file.empty() ? by : kBySharedFile),
          .socket = std::move(socket),
          .host = printable_line(settings.host)};
}

std::string Claims::name() const {
  return fmt::format("pid {} on {}", printable_line(pid), printable_line(host));
}

std::string Claims::to_text() const {
  std::string text;
  for (const auto field : kFields) text += this->*field + '\n';
  return text;
}

Result<std::vector<Claims>> parse_claims(std::string_view text, int count) {
  const std::vector<std::string_view> lines = split(text, '\n');
  if (lines.size() != kFields.size() * static_cast<std::size_t>(count)) {
    return Status(Code::kCorrupt,
                  fmt::format("what {} rank(s) say of themselves has {} lines instead of {}", count,
                              lines.size(), kFields.size() * static_cast<std::size_t>(count)));
  }
  std::vector<Claims> all(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < lines.size(); ++i) {
    all[i / kFields.size()].*kFields[i % kFields.size()] = lines[i];
  }
  return all;
}

std::string difference(const Claims& a, const Claims& b) {
  std::vector<std::string_view> what;
  if (a.kernel != b.kernel) return "they run under different kernels";
  if (a.user != b.user) what.emplace_back("users");
  if (a.processes != b.processes) what.emplace_back("process namespaces");
  if (a.mounts != b.mounts) what.emplace_back("mount namespaces");
  if (a.network != b.network) what.emplace_back("network namespaces");
  return what.empty() ? "" : fmt::format("their {} differ", fmt::join(what, " and "));
}

}  // namespace stormo::comm
