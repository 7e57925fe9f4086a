#include <stormo/membership/random_id.h>
#include <stormo/transport/net/handshake.h>

#include <cstring>

namespace stormo::membership {

std::uint64_t random_id() {
  const transport::Nonce nonce = transport::random_nonce();
  std::uint64_t id = 0;
  std::memcpy(&id, nonce.data(), sizeof id);
  return id;
}

}  // namespace stormo::membership
