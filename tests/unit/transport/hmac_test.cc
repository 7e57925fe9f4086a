#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stormo/transport/net/hmac.h>

#include <string_view>
#include <vector>

namespace stormo::transport {
namespace {

using Bytes = std::vector<std::uint8_t>;

std::string hex_of_mac(const Bytes& key, std::string_view text) {
  std::string hex;
  for (const std::byte b : hmac_sha256(key, std::as_bytes(std::span(text)))) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    hex += kDigits[static_cast<std::size_t>(b) >> 4];
    hex += kDigits[static_cast<std::size_t>(b) & 15];
  }
  return hex;
}

TEST(Hmac, IsThatOfRfc4231) {
  EXPECT_EQ(hex_of_mac(Bytes(20, 0x0b), "Hi There"),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hex_of_mac({'J', 'e', 'f', 'e'}, "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hex_of_mac(Bytes(20, 0xaa), std::string(50, '\xdd')),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
}

TEST(Hmac, OfNothingIsDefined) {
  EXPECT_EQ(hex_of_mac({}, ""), "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
}

TEST(Hmac, IsThatOfOpensslForEveryLength) {
  for (std::size_t length = 1; length <= 300; ++length) {
    Bytes text(length), key(length % 64 + 1);
    for (std::size_t i = 0; i < length; ++i) text[i] = static_cast<std::uint8_t>(7 * i + length);
    for (std::size_t i = 0; i < key.size(); ++i) key[i] = static_cast<std::uint8_t>(i * i + 1);
    std::array<std::byte, 32> expected;
    HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), text.data(), text.size(),
         reinterpret_cast<unsigned char*>(expected.data()), nullptr);
    EXPECT_EQ(hmac_sha256(key, std::as_bytes(std::span(text))), expected) << length;
  }
}

}  // namespace
}  // namespace stormo::transport
