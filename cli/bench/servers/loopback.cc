#include <cli/bench/servers/loopback.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <span>
#include <utility>

#include <stormo/server/byte_ranges.h>

namespace stormo::cli {
namespace {

using server::ByteRanges;
using transport::Descriptor;
using transport::HostPort;

constexpr const char* kLoopback = "127.0.0.1";

void block(const Descriptor& socket) {
  (void)::fcntl(socket.get(), F_SETFL, ::fcntl(socket.get(), F_GETFL) & ~O_NONBLOCK);
  transport::tune_tcp(socket.get());
}

ByteRanges all_of(std::vector<std::byte>& buffer) {
  ByteRanges ranges;
  ranges.add(buffer.data(), buffer.size());
  return ranges;
}

/// Takes and sends back, until the connection ends.
void serve(int socket, std::uint64_t bytes) {
  std::vector<std::byte> buffer(bytes);
  while (all_of(buffer).receive_all(socket).ok() && all_of(buffer).send_all(socket).ok()) {
  }
}

Result<Descriptor> connect_to(std::int64_t port) {
  STORMO_ASSIGN_OR_RETURN(const auto addresses, transport::resolve(HostPort{
                                                    kLoopback, static_cast<std::uint16_t>(port)}));
  const transport::SocketAddress& to = addresses.front();
  Descriptor socket(::socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.valid() ||
      ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to.storage), to.length) != 0) {
    return errno_error("cannot connect to " + to.to_string());
  }
  block(socket);
  return socket;
}

}  // namespace

Result<std::unique_ptr<LoopbackServer>> LoopbackServer::create(comm::Communicator& world, int keys,
                                                               std::uint64_t bytes) {
  std::unique_ptr<LoopbackServer> server(new LoopbackServer(keys, bytes));
  std::int64_t port = 0;
  if (world.rank() == 0) {
    STORMO_ASSIGN_OR_RETURN(port, server->listen());
  }
  STORMO_RETURN_IF_ERROR(world.broadcast(std::span(&port, 1), 0));
  STORMO_ASSIGN_OR_RETURN(server->server_, connect_to(port));
  if (world.rank() == 0) STORMO_RETURN_IF_ERROR(server->accept_all(world.size()));
  return server;
}

LoopbackServer::~LoopbackServer() {
  for (const Descriptor& socket : to_) (void)::shutdown(socket.get(), SHUT_RDWR);
  for (std::thread& t : threads_) t.join();
}

/// Returns the port.
Result<std::int64_t> LoopbackServer::listen() {
  STORMO_ASSIGN_OR_RETURN(listener_, transport::listen_tcp({kLoopback, 0}, {}));
  STORMO_ASSIGN_OR_RETURN(const auto bound, transport::local_address_of(listener_.get()));
  STORMO_ASSIGN_OR_RETURN(const HostPort address, transport::parse_host_port(bound.to_string()));
  return std::int64_t{address.port};
}

Status LoopbackServer::accept_all(int ranks) {
  while (std::ssize(to_) < ranks) {
    pollfd waiting{listener_.get(), POLLIN, 0};
    (void)::poll(&waiting, 1, -1);
    transport::SocketAddress peer;
    STORMO_ASSIGN_OR_RETURN(Descriptor socket, transport::accept_from(listener_.get(), &peer));
    if (!socket.valid()) continue;
    block(socket);
    threads_.emplace_back(serve, socket.get(), buffer_.size());
    to_.push_back(std::move(socket));
  }
  return {};
}

Status LoopbackServer::push_and_pull() {
  for (int key = 0; key < keys_; ++key) {
    STORMO_RETURN_IF_ERROR(all_of(buffer_).send_all(server_.get()));
    STORMO_RETURN_IF_ERROR(all_of(buffer_).receive_all(server_.get()));
  }
  return {};
}

}  // namespace stormo::cli
