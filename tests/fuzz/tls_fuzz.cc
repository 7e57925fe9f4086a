// TLS after the handshake: whatever a peer says, who does not know the key of the connection does
// not get one.
#include <stormo/base/check.h>
#include <stormo/base/descriptor.h>
#include <stormo/transport/net/tls_stream.h>
#include <sys/socket.h>

#include <array>
#include <string>

#include "tests/fuzz/fuzz.h"

namespace stormo::fuzz {
namespace {

using transport::TlsStream;
using Role = TlsStream::Role;

TlsStream::Key key() {
  TlsStream::Key key;
  key.fill(std::byte{7});
  return key;
}

/// A stream and its peer, which is only a socket.
struct Line {
  explicit Line(Role role) : ends(pair()), stream(ends[0].get(), role, key()) {}
  static std::array<Descriptor, 2> pair() {
    std::array<int, 2> fds{};
    STORMO_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds.data()) == 0, "sockets");
    return {Descriptor(fds[0]), Descriptor(fds[1])};
  }
  void hear(std::string_view text) const {
    (void)::send(ends[1].get(), text.data(), text.size(), MSG_NOSIGNAL);
  }
  std::string spoken() const {
    std::string text(16 << 10, '\0');
    const ssize_t n = ::recv(ends[1].get(), text.data(), text.size(), 0);
    text.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
    return text;
  }
  bool is_open() {
    const Result<bool> done = stream.shake_hands();
    STORMO_CHECK(done.ok() || !done.status().message().empty(), "no reason given");
    return done.ok() && *done;
  }

  std::array<Descriptor, 2> ends;
  TlsStream stream;
};

}  // namespace

std::vector<std::string> seeds() {
  Line client(Role::kClient), server(Role::kServer);
  STORMO_CHECK(!client.is_open(), "alone");
  const std::string hello = client.spoken();
  server.hear(hello);
  STORMO_CHECK(!server.is_open(), "half a handshake");
  const std::string answer = server.spoken();
  client.hear(answer);
  STORMO_CHECK(client.is_open(), "the client has all that it wants");
  return {'s' + hello, 'c' + answer, 's' + hello + client.spoken(), std::string("s")};
}

}  // namespace stormo::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stormo::fuzz;
  const std::string_view text = as_text(data, size);
  if (text.empty()) return 0;
  Line line(text[0] == 'c' ? Role::kClient : Role::kServer);
  if (text[0] == 'c') (void)line.is_open();  // it speaks first
  line.hear(text.substr(1));
  STORMO_CHECK(!line.is_open() && !line.is_open(), "a stranger has a connection");
  return 0;
}
