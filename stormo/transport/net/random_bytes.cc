#include <stormo/base/check.h>
#include <stormo/transport/net/random_bytes.h>
#include <sys/random.h>

#include <cerrno>

namespace stormo::transport {

void fill_with_random(std::span<std::byte> bytes) {
  STORMO_CHECK(bytes.size() <= 256, "the kernel gives no more whole");
  ssize_t n = 0;
  do n = ::getrandom(bytes.data(), bytes.size(), 0);
  while (n < 0 && errno == EINTR);
  STORMO_CHECK(n == static_cast<ssize_t>(bytes.size()),
               "the system's random number generator failed");
}

}  // namespace stormo::transport
