#include <fmt/format.h>
#include <openssl/crypto.h>
#include <stormo/base/check.h>
#include <stormo/transport/net/handshake.h>
#include <stormo/transport/net/hmac.h>
#include <stormo/transport/net/random_bytes.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace stormo::transport {
namespace {

// Magic and version keep their place in every future version: that is how two versions can tell
// each other apart.
constexpr std::array<char, 8> kMagic = {'\x93', 'S', 'T', 'O', 'R', 'M', 'O', '\n'};
constexpr std::size_t kClientHelloBytes = 64;
constexpr std::size_t kServerHelloBytes = 80;
constexpr std::size_t kVerdictBytes = 40;
constexpr std::string_view kServerLabel = "stormo handshake: server hello";
constexpr std::string_view kClientLabel = "stormo handshake: client proof";
constexpr std::string_view kVerdictLabel = "stormo handshake: server verdict";
constexpr std::string_view kTlsLabel = "stormo handshake: key of TLS";

template <class T>
void store_at(std::span<std::byte> out, std::size_t offset, T value) {
  std::memcpy(out.data() + offset, &value, sizeof value);
}

template <class T>
T load_at(std::span<const std::byte> in, std::size_t offset) {
  T value;
  std::memcpy(&value, in.data() + offset, sizeof value);
  return value;
}

bool is_tls_wish(std::uint8_t byte) { return byte <= static_cast<std::uint8_t>(kLastTlsWish); }

std::string version_reason(std::uint16_t peer, std::uint16_t own) {
  return fmt::format(
      "the peer speaks protocol version {}, this side version {}; run the same version of the "
      "program on all ranks",
      peer, own);
}

}  // namespace

std::string_view to_string(Refusal refusal) {
  switch (refusal) {
    case Refusal::kNone: return "accepted";
    case Refusal::kNotStormo: return "not this protocol";
    case Refusal::kVersion: return "another protocol version";
    case Refusal::kPurpose: return "meant for another kind of port";
    case Refusal::kSecret: return "wrong secret";
    case Refusal::kEpoch: return "wrong epoch";
    case Refusal::kRank: return "wrong rank";
    case Refusal::kDuplicate: return "this rank is already connected";
    case Refusal::kFull: return "too many connections";
    case Refusal::kMalformed: return "malformed handshake";
    case Refusal::kTls: return "another setting of TLS";
  }
  return "unknown reason";
}

Nonce random_nonce() {
  Nonce nonce;
  fill_with_random(nonce);
  return nonce;
}

Handshake::Handshake(const Secret& secret, bool server, const Nonce& nonce)
    : secret_(secret), nonce_(nonce), server_(server) {}

Handshake Handshake::as_client(const Secret& secret, const Hello& hello, const Nonce& nonce) {
  Handshake h(secret, false, nonce);
  h.hello_ = hello;
  h.version_ = hello.version;
  std::array<std::byte, kClientHelloBytes> m{};
  std::memcpy(m.data(), kMagic.data(), kMagic.size());
  store_at(m, 8, hello.version);
  store_at(m, 10, static_cast<std::uint8_t>(hello.purpose));
  store_at(m, 11, static_cast<std::uint8_t>(hello.tls));
  store_at(m, 12, hello.epoch);
  store_at(m, 16, std::int32_t{hello.from});
  store_at(m, 20, std::int32_t{hello.to});
  store_at(m, 24, std::int32_t{hello.size});
  std::memcpy(m.data() + 32, nonce.data(), nonce.size());
  h.append(m);
  h.queue_from(0);
  h.expect(kServerHelloBytes);
  return h;
}

Handshake Handshake::as_server(const Secret& secret, Purpose purpose, const Nonce& nonce,
                               std::uint16_t version, TlsWish tls) {
  Handshake h(secret, true, nonce);
  h.server_tls_ = tls;
  h.purpose_ = purpose;
  h.version_ = version;
  h.expect(kClientHelloBytes);
  return h;
}

void Handshake::receive(std::span<const std::byte> bytes) {
  STORMO_CHECK(bytes.size() <= wanted(), "more bytes than the handshake wants");
  if (bytes.empty()) return;
  std::memcpy(transcript_.data() + length_ + filled_, bytes.data(), bytes.size());
  filled_ += bytes.size();
  // A stranger is told apart by its first bytes, without waiting for a full message.
  if (!magic_so_far_matches()) {
    fail(Refusal::kNotStormo, "the peer does not speak this protocol");
    return;
  }
  if (filled_ == message_size_) complete_message();
}

bool Handshake::magic_so_far_matches() const {
  const bool hello = length_ == 0 || (!server_ && length_ == kClientHelloBytes);
  if (!hello) return true;
  const std::size_t n = std::min(filled_, kMagic.size());
  return std::memcmp(transcript_.data() + length_, kMagic.data(), n) == 0;
}

void Handshake::expect(std::size_t bytes) {
  message_size_ = bytes;
  filled_ = 0;
}

void Handshake::complete_message() {
  length_ += message_size_;
  if (server_) {
    length_ == kClientHelloBytes ? on_client_hello() : on_client_proof();
  } else {
    length_ == kClientHelloBytes + kServerHelloBytes ? on_server_hello() : on_verdict();
  }
}

void Handshake::on_client_hello() {
  const std::span<const std::byte> m(transcript_.data(), kClientHelloBytes);
  hello_.version = load_at<std::uint16_t>(m, 8);
  if (hello_.version != version_) {
    send_server_hello(Refusal::kVersion);
    return fail(Refusal::kVersion, version_reason(hello_.version, version_));
  }
  const auto purpose = load_at<std::uint8_t>(m, 10);
  if (purpose != static_cast<std::uint8_t>(purpose_)) {
    send_server_hello(Refusal::kPurpose);
    return fail(Refusal::kPurpose, std::string(to_string(Refusal::kPurpose)));
  }
  if (load_at<std::int32_t>(m, 28) != 0) {
    return fail(Refusal::kMalformed, "reserved bytes of the hello are not zero");
  }
  if (!is_tls_wish(load_at<std::uint8_t>(m, 11))) {
    return fail(Refusal::kMalformed, "an unknown setting of TLS");
  }
  hello_.tls = load_at<TlsWish>(m, 11);
  if (disagree(hello_.tls, server_tls_)) {
    send_server_hello(Refusal::kTls);
    return fail(Refusal::kTls, tls_mismatch(server_tls_, hello_.tls));
  }
  hello_.purpose = purpose_;
  hello_.epoch = load_at<Epoch>(m, 12);
  hello_.from = load_at<std::int32_t>(m, 16);
  hello_.to = load_at<std::int32_t>(m, 20);
  hello_.size = load_at<std::int32_t>(m, 24);
  send_server_hello(Refusal::kNone);
  expect(kMacBytes);
}

void Handshake::send_server_hello(Refusal refusal) {
  const std::size_t begin = length_;
  std::array<std::byte, kServerHelloBytes - kMacBytes> m{};
  std::memcpy(m.data(), kMagic.data(), kMagic.size());
  store_at(m, 8, version_);
  store_at(m, 10, static_cast<std::uint8_t>(refusal));
  store_at(m, 11, static_cast<std::uint8_t>(server_tls_));
  std::memcpy(m.data() + 16, nonce_.data(), nonce_.size());
  append(m);
  append(mac(kServerLabel));  // a refusal, too: the client gives up for nobody else's
  queue_from(begin);
}

void Handshake::on_server_hello() {
  const std::span<const std::byte> m(transcript_.data() + kClientHelloBytes, kServerHelloBytes);
  const bool proven = ends_with_mac(kServerLabel);
  authentic_refusal_ = proven;
  const auto version = load_at<std::uint16_t>(m, 8);
  if (version != version_) return fail(Refusal::kVersion, version_reason(version, version_));
  const auto refusal = static_cast<Refusal>(load_at<std::uint8_t>(m, 10));
  if (is_tls_wish(load_at<std::uint8_t>(m, 11))) server_tls_ = load_at<TlsWish>(m, 11);
  if (refusal == Refusal::kTls) return fail(refusal, tls_mismatch(hello_.tls, server_tls_));
  if (refusal != Refusal::kNone) {
    return fail(refusal, fmt::format("the peer refused: {}", to_string(refusal)));
  }
  authentic_refusal_ = false;
  const std::size_t begin = length_;
  // A proof of zeros tells an honest server why this side leaves; it reveals nothing.
  const Mac proof = proven ? mac(kClientLabel) : Mac{};
  append(proof);
  queue_from(begin);
  if (!proven) return fail(Refusal::kSecret, "wrong secret");
  expect(kVerdictBytes);
}

void Handshake::on_client_proof() {
  if (!ends_with_mac(kClientLabel)) return fail(Refusal::kSecret, "wrong secret");
  state_ = State::kProven;
}

void Handshake::decide(Refusal refusal) {
  STORMO_CHECK(state_ == State::kProven, "decided about a client that is not proven");
  const std::size_t begin = length_;
  std::array<std::byte, kVerdictBytes - kMacBytes> m{};
  store_at(m, 0, static_cast<std::uint8_t>(refusal));
  append(m);
  append(mac(kVerdictLabel));
  queue_from(begin);
  if (refusal != Refusal::kNone) return fail(refusal, std::string(to_string(refusal)));
  state_ = State::kAccepted;
}

void Handshake::on_verdict() {
  const std::size_t begin = length_ - kVerdictBytes;
  if (!ends_with_mac(kVerdictLabel)) {
    return fail(Refusal::kMalformed, "the peer's verdict is not authentic");
  }
  const auto refusal = static_cast<Refusal>(transcript_[begin]);
  authentic_refusal_ = refusal != Refusal::kNone;
  if (refusal != Refusal::kNone) {
    return fail(refusal, fmt::format("the peer refused: {}", to_string(refusal)));
  }
  state_ = State::kAccepted;
}

void Handshake::fail(Refusal refusal, std::string reason) {
  state_ = State::kRefused;
  refusal_ = refusal;
  reason_ = std::move(reason);
}

void Handshake::append(std::span<const std::byte> bytes) {
  std::memcpy(transcript_.data() + length_, bytes.data(), bytes.size());
  length_ += bytes.size();
}

void Handshake::queue_from(std::size_t begin) {
  STORMO_CHECK(output_begin_ == output_end_, "the previous message was not sent");
  output_begin_ = 0;
  output_end_ = length_ - begin;
  std::memcpy(output_.data(), transcript_.data() + begin, output_end_);
}

Handshake::Mac Handshake::mac(std::string_view label) const {
  // One HMAC over label, a zero byte (no label contains one) and the transcript.
  std::array<std::byte, 64 + kTranscriptBytes> input{};
  std::memcpy(input.data(), label.data(), label.size());
  std::memcpy(input.data() + label.size() + 1, transcript_.data(), length_);
  static constexpr std::array<std::uint8_t, Secret::kBytes> kNoSecret{};
  const auto& key = secret_.empty() ? kNoSecret : secret_.bytes();
  return hmac_sha256(key, std::span(input).first(label.size() + 1 + length_));
}

std::array<std::byte, 32> Handshake::tls_key() const {
  STORMO_CHECK(state_ == State::kAccepted, "a key of a connection that is not accepted");
  return mac(kTlsLabel);
}

bool Handshake::ends_with_mac(std::string_view label) {
  Mac received;
  std::memcpy(received.data(), transcript_.data() + length_ - kMacBytes, kMacBytes);
  length_ -= kMacBytes;
  const Mac expected = mac(label);
  length_ += kMacBytes;
  return CRYPTO_memcmp(received.data(), expected.data(), kMacBytes) == 0;
}

}  // namespace stormo::transport
