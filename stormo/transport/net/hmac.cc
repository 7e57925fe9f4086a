// By OpenSSL's functions for SHA-256 alone, which it has marked as old. Its HMAC() first prepares
// all of its algorithms, which takes 0.8 ms in each process that joins a job.
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <stormo/base/check.h>
#include <stormo/transport/net/hmac.h>

namespace stormo::transport {
namespace {

using Digest = std::array<std::byte, SHA256_DIGEST_LENGTH>;

/// The hash of a block, which is the key with each byte changed by `pad`, and of a text behind it.
Digest hash(std::span<const std::uint8_t> key, std::uint8_t pad, std::span<const std::byte> text) {
  std::array<std::uint8_t, SHA256_CBLOCK> block{};
  for (std::size_t i = 0; i < block.size(); ++i) {
    block[i] = static_cast<std::uint8_t>((i < key.size() ? key[i] : 0) ^ pad);
  }
  Digest digest;
  SHA256_CTX state;
  bool done = SHA256_Init(&state) == 1;
  done = done && SHA256_Update(&state, block.data(), block.size()) == 1;
  done = done && SHA256_Update(&state, text.data(), text.size()) == 1;
  done = done && SHA256_Final(reinterpret_cast<unsigned char*>(digest.data()), &state) == 1;
  STORMO_CHECK(done, "SHA-256 failed");
  OPENSSL_cleanse(block.data(), block.size());
  OPENSSL_cleanse(&state, sizeof state);
  return digest;
}

}  // namespace

std::array<std::byte, 32> hmac_sha256(std::span<const std::uint8_t> key,
                                      std::span<const std::byte> text) {
  STORMO_CHECK(key.size() <= SHA256_CBLOCK, "a key of HMAC-SHA256 that is longer than its block");
  return hash(key, 0x5c, hash(key, 0x36, text));
}

}  // namespace stormo::transport
