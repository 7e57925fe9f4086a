#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stormo/base/check.h>
#include <stormo/transport/net/tls_stream.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

namespace stormo::transport {
namespace {

constexpr std::string_view kIdentity = "stormo";                // the key says more
constexpr std::array<unsigned char, 2> kCipher = {0x13, 0x01};  // TLS_AES_128_GCM_SHA256
constexpr std::size_t kBatchRecords = 4;                        // in one system call
/// AES-GCM allows 2^24.5 full records for each key (RFC 8446, 5.5).
constexpr std::uint64_t kRecordsPerKey = std::uint64_t{1} << 23;

/// A key that both ends have, in the form that OpenSSL wants.
SSL_SESSION* session_of(SSL* ssl) {
  const auto* const key = static_cast<const TlsStream::Key*>(SSL_get_app_data(ssl));
  SSL_SESSION* const session = SSL_SESSION_new();
  STORMO_CHECK(session != nullptr, "no memory for a TLS session");
  const bool made =
      SSL_SESSION_set1_master_key(session, reinterpret_cast<const unsigned char*>(key->data()),
                                  key->size()) == 1 &&
      SSL_SESSION_set_cipher(session, SSL_CIPHER_find(ssl, kCipher.data())) == 1 &&
      SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1;
  STORMO_CHECK(made, "OpenSSL takes no external key");
  return session;
}

int use_key(SSL* ssl, const EVP_MD* /*digest*/, const unsigned char** identity, std::size_t* bytes,
            SSL_SESSION** session) {
  *session = session_of(ssl);
  *identity = reinterpret_cast<const unsigned char*>(kIdentity.data());
  *bytes = kIdentity.size();
  return *session != nullptr ? 1 : 0;
}

int find_key(SSL* ssl, const unsigned char* identity, std::size_t bytes, SSL_SESSION** session) {
  const std::string_view name(reinterpret_cast<const char*>(identity), bytes);
  *session = name == kIdentity ? session_of(ssl) : nullptr;
  return 1;
}

struct FreeContext {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};
using Context = std::unique_ptr<SSL_CTX, FreeContext>;

/// TLS 1.3 with one cipher, by the key alone: without a certificate nothing else can succeed.
Context make_context() {
  Context made(SSL_CTX_new(TLS_method()));
  SSL_CTX* const c = made.get();
  const bool is_set = c != nullptr && SSL_CTX_set_min_proto_version(c, TLS1_3_VERSION) == 1 &&
                      SSL_CTX_set_max_proto_version(c, TLS1_3_VERSION) == 1 &&
                      SSL_CTX_set_ciphersuites(c, "TLS_AES_128_GCM_SHA256") == 1 &&
                      SSL_CTX_set1_groups_list(c, "X25519") == 1 &&
                      SSL_CTX_set_num_tickets(c, 0) == 1;
  STORMO_CHECK(is_set, "OpenSSL has no TLS 1.3 with AES-128-GCM and X25519");
  SSL_CTX_set_options(c, SSL_OP_NO_TICKET);
  SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_default_read_buffer_len(c, TlsStream::kReadAhead);
  SSL_CTX_set_mode(c, SSL_MODE_RELEASE_BUFFERS);  // a Store has many connections that rest
  SSL_CTX_set_psk_use_session_callback(c, use_key);
  SSL_CTX_set_psk_find_session_callback(c, find_key);
  return made;
}

SSL_CTX* context() {
  static const Context kContext = make_context();
  return kContext.get();
}

std::size_t bytes_of(std::span<const iovec> parts) {
  std::size_t bytes = 0;
  for (const iovec& p : parts) bytes += p.iov_len;
  return bytes;
}

}  // namespace

/// The bytes of TLS between OpenSSL and the socket.
struct TlsBio {
  static const BIO_METHOD* method() {
    static BIO_METHOD* const kMethod = [] {
      BIO_METHOD* const made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "stormo");
      STORMO_CHECK(made != nullptr && BIO_meth_set_write(made, TlsStream::write_bio) == 1 &&
                       BIO_meth_set_read(made, TlsStream::read_bio) == 1 &&
                       BIO_meth_set_ctrl(made, TlsStream::control_bio) == 1,
                   "OpenSSL takes no BIO");
      return made;
    }();
    return kMethod;
  }
};

TlsStream::TlsStream(int fd, Role role, const Key& key)
    : fd_(fd), key_(key), ssl_(SSL_new(context())) {
  BIO* const bio = BIO_new(TlsBio::method());
  STORMO_CHECK(ssl_ != nullptr && bio != nullptr, "no memory for TLS");
  BIO_set_data(bio, this);
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_, bio, bio);
  SSL_set_app_data(ssl_, &key_);
  if (role == Role::kClient) {
    SSL_set_verify(ssl_, SSL_VERIFY_PEER, nullptr);  // no certificate instead of the key
    SSL_set_connect_state(ssl_);
  } else {
    SSL_set_accept_state(ssl_);
  }
}

/// Says that no more is sent, if that can be said: nothing may stand between it and what was sent.
TlsStream::~TlsStream() {
  blocks_ = false;
  if (is_open_ && error_ == 0 && out_.empty()) {
    ERR_clear_error();
    (void)SSL_shutdown(ssl_);
    (void)flush();
  }
  SSL_free(ssl_);
  OPENSSL_cleanse(key_.data(), key_.size());
}

int TlsStream::write_bio(BIO* bio, const char* data, int size) {
  auto& out = static_cast<TlsStream*>(BIO_get_data(bio))->out_;
  out.insert(out.end(), data, data + size);
  return size;
}

int TlsStream::read_bio(BIO* bio, char* data, int size) {
  auto& self = *static_cast<TlsStream*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  ssize_t n = -1;
  errno = EAGAIN;
  if (self.may_read_) {
    self.may_read_ = !self.is_open_;
    const auto room = static_cast<std::size_t>(size);
    do n = ::recv(self.fd_, data, room, self.blocks_ ? 0 : MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
  }
  if (n < 0 && errno == EAGAIN) {
    BIO_set_retry_read(bio);
  } else if (n < 0) {
    self.error_ = errno;
  } else if (n == 0) {
    self.has_ended_ = true;
  }
  return static_cast<int>(n);
}

long TlsStream::control_bio(BIO* /*bio*/, int command, long /*number*/, void* /*pointer*/) {
  return command == BIO_CTRL_FLUSH || command == BIO_CTRL_DUP ? 1 : 0;
}

Result<bool> TlsStream::shake_hands() {
  may_read_ = true;
  ERR_clear_error();
  const int done = SSL_do_handshake(ssl_);
  const int why = SSL_get_error(ssl_, done);
  // A fresh socket takes these few bytes, or its peer is up to no good.
  if (!flush()) return io_error("the peer does not read the TLS handshake");
  if (done != 1 && why == SSL_ERROR_WANT_READ) return false;
  if (done != 1) return handshake_failure(why);
  if (SSL_session_reused(ssl_) != 1) {
    return Status(Code::kRefused, "TLS: the peer does not use the key of the connection");
  }
  OPENSSL_cleanse(key_.data(), key_.size());
  SSL_set_read_ahead(ssl_, 1);
  is_open_ = true;
  return true;
}

Status TlsStream::handshake_failure(int why) {
  if (error_ != 0 || has_ended_)
    return io_error("the peer closed the connection during the TLS handshake");
  error_ = EBADMSG;
  const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
  std::string text = reason != nullptr ? reason : "error " + std::to_string(why);
  return {Code::kRefused, "TLS handshake: " + text};
}

ssize_t TlsStream::fail(int error) {
  if (error_ == 0) error_ = error;
  errno = error_;
  return -1;
}

/// False, and errno, when encrypted bytes are left.
bool TlsStream::flush() {
  while (out_begin_ < out_.size()) {
    const ssize_t n = ::send(fd_, out_.data() + out_begin_, out_.size() - out_begin_,
                             MSG_NOSIGNAL | (blocks_ ? 0 : MSG_DONTWAIT));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    out_begin_ += static_cast<std::size_t>(n);
  }
  out_.clear();
  out_begin_ = 0;
  return true;
}

ssize_t TlsStream::send(std::span<const iovec> parts) {
  if (error_ != 0) return fail(error_);
  const std::size_t total = bytes_of(parts);
  std::size_t sent = 0;
  for (;;) {
    if (!flush()) return sent > 0 ? static_cast<ssize_t>(sent) : -1;
    STORMO_CHECK(encrypted_ <= total - sent, "bytes that were not sent did not come again");
    sent += std::exchange(encrypted_, 0);
    if (sent == total) return static_cast<ssize_t>(sent);
    if (!encrypt(parts, sent, total)) return fail(EPROTO);
  }
}

/// The next records, into out_. Their bytes are taken from where they lie, unless a record takes
/// several parts.
bool TlsStream::encrypt(std::span<const iovec> parts, std::size_t from, std::size_t total) {
  ERR_clear_error();
  std::size_t begin = from;  // in the present part
  std::size_t at = 0;        // the part
  for (std::size_t n = 0; n < kBatchRecords && from + encrypted_ < total; ++n) {
    while (begin >= parts[at].iov_len) begin -= parts[at++].iov_len;
    const std::size_t bytes = std::min(kRecordBytes, total - from - encrypted_);
    const auto* record = static_cast<const unsigned char*>(parts[at].iov_base) + begin;
    if (parts[at].iov_len - begin < bytes) {
      if (!gathered_) gathered_ = std::make_unique<unsigned char[]>(kRecordBytes);
      std::size_t filled = 0;
      for (std::size_t p = at, skip = begin; filled < bytes; ++p, skip = 0) {
        const std::size_t taken = std::min(bytes - filled, parts[p].iov_len - skip);
        const auto* const data = static_cast<const unsigned char*>(parts[p].iov_base);
        if (taken > 0) std::memcpy(gathered_.get() + filled, data + skip, taken);
        filled += taken;
      }
      record = gathered_.get();
    }
    if (++records_ > kRecordsPerKey && !renew_key().ok()) return false;
    std::size_t written = 0;
    if (SSL_write_ex(ssl_, record, bytes, &written) != 1 || written != bytes) return false;
    encrypted_ += bytes;
    begin += bytes;
  }
  return true;
}

Status TlsStream::renew_key() {
  records_ = 0;
  if (SSL_key_update(ssl_, SSL_KEY_UPDATE_NOT_REQUESTED) == 1) return {};
  return io_error("TLS: no new key");
}

ssize_t TlsStream::receive(std::span<const iovec> parts) {
  if (error_ != 0) return fail(error_);
  may_read_ = true;
  std::size_t received = 0;
  ERR_clear_error();
  for (const iovec& part : parts) {
    for (std::size_t filled = 0; filled < part.iov_len;) {
      std::size_t n = 0;
      const int done = SSL_read_ex(ssl_, static_cast<unsigned char*>(part.iov_base) + filled,
                                   part.iov_len - filled, &n);
      if (done == 1) {
        filled += n;
        received += n;
        continue;
      }
      const int why = SSL_get_error(ssl_, done);
      if (why == SSL_ERROR_WANT_READ && blocks_ && received == 0) {
        may_read_ = true;  // the rest of a record
        continue;
      }
      if (received > 0) return static_cast<ssize_t>(received);  // then the rest
      if (why == SSL_ERROR_ZERO_RETURN) return 0;
      if (why == SSL_ERROR_WANT_READ) {
        errno = EAGAIN;
        return -1;
      }
      return fail(has_ended_ ? ECONNRESET : EBADMSG);
    }
  }
  return static_cast<ssize_t>(received);
}

}  // namespace stormo::transport
