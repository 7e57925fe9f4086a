#include <openssl/crypto.h>
#include <stormo/base/check.h>
#include <stormo/transport/net/random_bytes.h>
#include <stormo/transport/net/secret.h>
#include <sys/mman.h>

#include <span>

namespace stormo::transport {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

constexpr std::size_t kPage = 4096;

}  // namespace

std::shared_ptr<Secret::Bytes> Secret::new_bytes() {
  void* const page =
      mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  STORMO_CHECK(page != MAP_FAILED, "no memory for a secret");
  (void)madvise(page, kPage, MADV_DONTDUMP);
  return {new (page) Bytes{}, [](Bytes* bytes) {
            OPENSSL_cleanse(bytes->data(), bytes->size());
            munmap(bytes, kPage);
          }};
}

void cleanse(std::string& text) { OPENSSL_cleanse(text.data(), text.size()); }

Secret Secret::random() {
  Secret secret;
  secret.bytes_ = new_bytes();
  fill_with_random(std::as_writable_bytes(std::span(*secret.bytes_)));
  return secret;
}

Result<Secret> Secret::from_hex(std::string_view text) {
  // The text itself is never part of a message: it may be most of a real secret.
  if (text.size() != 2 * kBytes) {
    return invalid_argument("a secret has " + std::to_string(2 * kBytes) +
                            " hexadecimal digits, this text has " + std::to_string(text.size()) +
                            " characters; use the text that the launcher or rendezvous file gave");
  }
  Secret secret;
  secret.bytes_ = new_bytes();
  Bytes& bytes = *secret.bytes_;
  for (std::size_t i = 0; i < kBytes; ++i) {
    const int high = hex_digit(text[2 * i]);
    const int low = hex_digit(text[2 * i + 1]);
    if (high < 0 || low < 0) {
      return invalid_argument(
          "a secret has hexadecimal digits only; use the text that the launcher or rendezvous "
          "file gave");
    }
    bytes[i] = static_cast<std::uint8_t>(high * 16 + low);
  }
  return secret;
}

std::string Secret::to_hex() const {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  if (!bytes_) return text;
  text.reserve(2 * kBytes);  // growing would leave pieces of it behind
  for (const std::uint8_t b : *bytes_) {
    text.push_back(kDigits[b >> 4]);
    text.push_back(kDigits[b & 15]);
  }
  return text;
}

}  // namespace stormo::transport
