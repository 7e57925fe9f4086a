// What STORMO_TLS says holds for tests, too, whose ranks are threads and read no environment.
#include <stormo/base/check.h>
#include <stormo/transport/net/tls_setting.h>

#include <cstdlib>
#include <string>

namespace {

[[maybe_unused]] const bool kIsSet = [] {
  const char* const text = std::getenv(std::string(stormo::transport::kTlsVariable).c_str());
  const bool is_known = text == nullptr || stormo::transport::use_tls_setting(text).ok();
  STORMO_CHECK(is_known, "STORMO_TLS is unknown");
  return true;
}();

}  // namespace
