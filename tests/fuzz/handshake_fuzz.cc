// The handshake: strangers who say anything never get in, and between two who know the secret no
// byte can be changed on the way.
#include <stormo/base/check.h>
#include <stormo/transport/net/handshake.h>

#include <algorithm>
#include <span>

#include "tests/fuzz/fuzz.h"

namespace stormo::fuzz {
namespace {

using namespace transport;

const Secret& secret() {
  static const Secret kSecret = *Secret::from_hex(std::string(64, '7'));
  return kSecret;
}
Nonce nonce(unsigned char fill) {
  Nonce n;
  n.fill(static_cast<std::byte>(fill));
  return n;
}
Handshake client() {
  return Handshake::as_client(secret(), {Purpose::kData, 3, 1, 0, 2}, nonce(1));
}
Handshake server() { return Handshake::as_server(secret(), Purpose::kData, nonce(2)); }

/// Gives the handshake all that it wants of `text`, in pieces.
void feed(Handshake& h, std::string_view text, std::size_t piece) {
  while (!text.empty() && h.wanted() > 0) {
    h.sent(h.output().size());
    const std::size_t n = std::min({piece, text.size(), h.wanted()});
    h.receive(std::as_bytes(std::span(text.data(), n)));
    text.remove_prefix(n);
  }
}

void check_stranger(std::string_view text) {
  const std::size_t piece = text.empty() ? 1 : 1 + static_cast<unsigned char>(text[0]) % 64;
  for (Handshake h : {client(), server()}) {
    feed(h, text.substr(std::min<std::size_t>(1, text.size())), piece);
    STORMO_CHECK(h.state() == Handshake::State::kWaiting || h.state() == Handshake::State::kRefused,
                 "a stranger was taken for a rank");
    STORMO_CHECK(h.state() != Handshake::State::kRefused || !h.reason().empty(), "no reason given");
  }
}

/// Takes what `from` says to `to`, changed by the next bytes of `mask`.
void carry(Handshake& from, Handshake& to, std::string_view& mask) {
  std::vector<std::byte> bytes(from.output().begin(), from.output().end());
  from.sent(bytes.size());
  for (std::byte& b : bytes) {
    if (mask.empty()) break;
    b ^= static_cast<std::byte>(mask[0]);
    mask.remove_prefix(1);
  }
  feed(to, {reinterpret_cast<const char*>(bytes.data()), bytes.size()}, bytes.size());
}

void check_changed_bytes(std::string_view mask) {
  constexpr std::size_t kAll = 64 + 80 + 32 + 40;
  mask = mask.substr(0, kAll);
  const bool changed = std::ranges::any_of(mask, [](char c) { return c != 0; });
  Handshake c = client();
  Handshake s = server();
  for (int turn = 0; turn < 2; ++turn) {
    carry(c, s, mask);
    if (s.state() == Handshake::State::kProven) s.admit();
    carry(s, c, mask);
  }
  STORMO_CHECK((c.state() == Handshake::State::kAccepted) == !changed, "changed bytes got through");
}

}  // namespace

std::vector<std::string> seeds() {
  const auto spoken = [](const Handshake& h) {
    return '?' + std::string(reinterpret_cast<const char*>(h.output().data()), h.output().size());
  };
  Handshake c = client();
  Handshake s = server();
  std::vector<std::string> all{spoken(c)};
  s.receive(c.output());
  all.push_back(spoken(s));
  for (const std::size_t at : {0u, 10u, 63u, 64u, 80u, 143u, 150u, 176u, 215u}) {
    all.push_back(std::string(at, '\0') + '\1');
  }
  all.emplace_back(216, '\0');
  return all;
}

}  // namespace stormo::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  stormo::fuzz::check_stranger(stormo::fuzz::as_text(data, size));
  stormo::fuzz::check_changed_bytes(stormo::fuzz::as_text(data, size));
  return 0;
}
