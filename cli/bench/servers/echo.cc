#include <cli/bench/servers/echo.h>

#include <poll.h>
#include <sys/socket.h>

#include <functional>
#include <utility>

#include <stormo/transport/call/frame.h>

namespace stormo::cli {
namespace {

using transport::ByteRanges;
using transport::Channel;
using transport::Descriptor;
using transport::HostPort;

Channel blocking(Descriptor socket) {
  transport::tune_tcp(socket.get());
  Channel channel(std::move(socket));
  channel.set_blocking();
  return channel;
}

ByteRanges all_of(std::vector<std::byte>& buffer) {
  ByteRanges ranges;
  ranges.add(buffer.data(), buffer.size());
  return ranges;
}

/// Takes and sends back, until the connection ends.
void serve(Channel& socket, std::uint64_t bytes) {
  std::vector<std::byte> buffer(bytes);
  while (all_of(buffer).receive_all(socket).ok() && all_of(buffer).send_all(socket).ok()) {
  }
}

Result<Channel> connect_to(const HostPort& server) {
  STORMO_ASSIGN_OR_RETURN(const auto addresses, transport::resolve(server));
  const transport::SocketAddress& to = addresses.front();
  Descriptor socket(::socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.valid() ||
      ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to.storage), to.length) != 0) {
    return errno_error("cannot connect to " + to.to_string());
  }
  return blocking(std::move(socket));
}

}  // namespace

Result<std::unique_ptr<EchoServer>> EchoServer::listen(const HostPort& address,
                                                       std::uint64_t bytes) {
  std::unique_ptr<EchoServer> server(new EchoServer(bytes));
  STORMO_ASSIGN_OR_RETURN(server->listener_, transport::listen_tcp(address, {}));
  return server;
}

EchoServer::~EchoServer() {
  for (const Channel& socket : clients_) (void)::shutdown(socket.fd(), SHUT_RDWR);
  for (std::thread& t : threads_) t.join();
}

Result<HostPort> EchoServer::address() const {
  STORMO_ASSIGN_OR_RETURN(const auto bound, transport::local_address_of(listener_.get()));
  return transport::parse_host_port(bound.to_string());
}

Status EchoServer::accept(int clients) {
  while (std::ssize(clients_) < clients) {
    pollfd waiting{listener_.get(), POLLIN, 0};
    (void)::poll(&waiting, 1, -1);
    transport::SocketAddress peer;
    STORMO_ASSIGN_OR_RETURN(Descriptor socket, transport::accept_from(listener_.get(), &peer));
    if (!socket.valid()) continue;
    Channel& client = clients_.emplace_back(blocking(std::move(socket)));
    threads_.emplace_back(serve, std::ref(client), bytes_);
  }
  return {};
}

Result<std::unique_ptr<EchoClient>> EchoClient::connect(const std::vector<HostPort>& servers,
                                                        std::uint64_t bytes) {
  auto client = std::make_unique<EchoClient>();
  for (const HostPort& server : servers) {
    STORMO_ASSIGN_OR_RETURN(Channel socket, connect_to(server));
    client->connections_.push_back({std::move(socket), std::vector<std::byte>(bytes)});
  }
  return client;
}

Status EchoClient::push_and_pull() {
  if (connections_.size() == 1) return connections_.front().push_and_pull();
  std::vector<Status> outcomes(connections_.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    threads.emplace_back([this, i, &outcomes] { outcomes[i] = connections_[i].push_and_pull(); });
  }
  for (std::thread& t : threads) t.join();
  for (const Status& outcome : outcomes) STORMO_RETURN_IF_ERROR(outcome);
  return {};
}

Status EchoClient::Connection::push_and_pull() {
  STORMO_RETURN_IF_ERROR(all_of(buffer).send_all(socket));
  return all_of(buffer).receive_all(socket);
}

}  // namespace stormo::cli
