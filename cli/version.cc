#include <cli/version.h>

#include <fmt/format.h>
#include <openssl/crypto.h>

#include <cli/build_facts.h>
#include <stormo/base/version.h>
#ifdef STORMO_HAVE_TORCH
#include <cli/torch_facts.h>
#endif

namespace stormo::cli {

std::string version_text() {
#ifdef STORMO_HAVE_TORCH
  const std::string torch = torch_facts().version;
#else
  const std::string torch = "none (this build cannot train)";
#endif
  return fmt::format(
      "stormo {}\n"
      "protocol   {}\n"
      "git        {}\n"
      "compiler   {}\n"
      "build      {}\n"
      "libtorch   {}\n"
      "OpenSSL    {}",
      kVersion, kProtocolVersion, kGitHash, kCompiler, kBuildType, torch,
      OpenSSL_version(OPENSSL_VERSION_STRING));
}

}  // namespace stormo::cli
