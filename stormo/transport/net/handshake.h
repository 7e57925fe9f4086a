#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <stormo/base/ids.h>
#include <stormo/base/version.h>
#include <stormo/transport/net/secret.h>
#include <stormo/transport/net/tls_setting.h>

namespace stormo::transport {

/// Version of all formats on a connection: handshake, Store frames, data frames.
inline constexpr auto kProtocolVersion = static_cast<std::uint16_t>(stormo::kProtocolVersion);

/// The purpose of a connection: a Store session is refused at a rank's data port and vice versa.
enum class Purpose : std::uint8_t {
  kStore = 1,
  kData = 2,
  kServer = 3,
  kRegister = 4,
  kMember = 5,
};

/// The identity of the client and of the peer that it expects. Authenticated as part of the
/// transcript.
struct Hello {
  Purpose purpose = Purpose::kStore;
  Epoch epoch = 0;
  Rank from = -1;
  Rank to = -1;
  int size = 0;
  std::uint16_t version = kProtocolVersion;
  TlsWish tls = TlsWish::kInside;
  bool operator==(const Hello&) const = default;
};

/// Why a connection was refused. Values are wire format: append only.
enum class Refusal : std::uint8_t {
  kNone = 0,
  kNotStormo = 1,
  kVersion = 2,
  kPurpose = 3,
  kSecret = 4,
  kEpoch = 5,
  kRank = 6,
  kDuplicate = 7,
  kFull = 8,
  kMalformed = 9,
  kTls = 10,
};
std::string_view to_string(Refusal refusal);

using Nonce = std::array<std::byte, 32>;
Nonce random_nonce();

/// One side of a mutual HMAC-SHA256 challenge over a byte stream, without I/O.
///
///   client hello    magic, version, purpose, TLS, epoch, ranks, client nonce          64 bytes
///   server hello    magic, version, refusal, TLS, server nonce, MAC                   80 bytes
///   client proof    MAC                                                               32 bytes
///   verdict         refusal, MAC                                                      40 bytes
///
/// Every MAC covers a label of its role and the whole transcript so far, so that no message can be
/// reflected, replayed or altered. All messages have a fixed size; no allocation depends on data of
/// the peer. Both ends need the same secret (an empty one on both ends is equal too).
class Handshake {
 public:
  enum class State {
    kWaiting,   ///< send output(), then give receive() up to wanted() bytes
    kProven,    ///< server only: the client knows the secret; call admit() or refuse()
    kAccepted,  ///< done once output() is sent; later bytes of the stream belong to the caller
    kRefused,   ///< send output() if there is any, then close; see reason()
  };

  static Handshake as_client(const Secret& secret, const Hello& hello, const Nonce& nonce);
  static Handshake as_server(const Secret& secret, Purpose purpose, const Nonce& nonce,
                             std::uint16_t version = kProtocolVersion,
                             TlsWish tls = TlsWish::kInside);

  State state() const { return state_; }
  /// Number of bytes that receive() accepts now; never read more than that from the stream.
  std::size_t wanted() const { return state_ == State::kWaiting ? message_size_ - filled_ : 0; }
  void receive(std::span<const std::byte> bytes);

  /// Bytes to send; call sent() for those that were sent.
  std::span<const std::byte> output() const {
    return std::span(output_).subspan(output_begin_, output_end_ - output_begin_);
  }
  void sent(std::size_t bytes) { output_begin_ += bytes; }

  /// The client's hello; at the server trusted only from kProven on.
  const Hello& hello() const { return hello_; }
  void admit() { decide(Refusal::kNone); }
  void refuse(Refusal refusal) { decide(refusal); }

  /// Once accepted: whether TLS follows on the stream, which is so if one end wants it.
  bool is_tls_next() const { return hello_.tls == TlsWish::kPsk || server_tls_ == TlsWish::kPsk; }
  /// Once accepted: a key of this connection alone, which both ends know.
  std::array<std::byte, 32> tls_key() const;

  Refusal refusal() const { return refusal_; }
  /// "wrong secret", "speaks protocol version 2, this side 1"; empty until refused.
  const std::string& reason() const { return reason_; }
  /// At the client: whether the refusal comes from a peer that has proven that it knows the secret.
  /// Any other refusal may come from any process.
  bool authentic_refusal() const { return authentic_refusal_; }

 private:
  static constexpr std::size_t kMacBytes = 32;
  static constexpr std::size_t kTranscriptBytes = 64 + 80 + 32 + 40;
  using Mac = std::array<std::byte, kMacBytes>;

  Handshake(const Secret& secret, bool server, const Nonce& nonce);
  void expect(std::size_t bytes);
  void complete_message();
  void on_client_hello();
  void on_server_hello();
  void on_client_proof();
  void on_verdict();
  void decide(Refusal refusal);
  void fail(Refusal refusal, std::string reason);
  bool magic_so_far_matches() const;
  void append(std::span<const std::byte> bytes);
  /// Queues the transcript's bytes from `begin` on.
  void queue_from(std::size_t begin);
  void send_server_hello(Refusal refusal);
  Mac mac(std::string_view label) const;
  bool ends_with_mac(std::string_view label);

  Secret secret_;
  Nonce nonce_;
  bool server_;
  Hello hello_;
  Purpose purpose_ = Purpose::kStore;
  std::uint16_t version_ = kProtocolVersion;
  TlsWish server_tls_ = TlsWish::kInside;
  State state_ = State::kWaiting;
  Refusal refusal_ = Refusal::kNone;
  std::string reason_;
  bool authentic_refusal_ = false;

  std::array<std::byte, kTranscriptBytes> transcript_{};
  std::size_t length_ = 0;        // of the transcript's complete messages
  std::size_t message_size_ = 0;  // of the message being received, written behind them
  std::size_t filled_ = 0;
  std::array<std::byte, 80> output_{};
  std::size_t output_begin_ = 0;
  std::size_t output_end_ = 0;
};

}  // namespace stormo::transport
