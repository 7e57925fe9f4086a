#include <cli/version.h>

#include <fmt/format.h>
#include <openssl/crypto.h>

#include <string_view>

#include <cli/build_facts.h>
#include <stormo/base/version.h>

namespace stormo::cli {

std::string version_text() {
  const std::string_view torch = kTorchVersion;
  return fmt::format(
      "stormo {}\n"
      "protocol   {}\n"
      "git        {}\n"
      "compiler   {}\n"
      "build      {}\n"
      "libtorch   {}\n"
      "OpenSSL    {}",
      kVersion, kProtocolVersion, kGitHash, kCompiler, kBuildType,
      torch.empty() ? "none (this build cannot train)" : torch,
      OpenSSL_version(OPENSSL_VERSION_STRING));
}

}  // namespace stormo::cli
