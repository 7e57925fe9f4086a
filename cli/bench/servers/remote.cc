#include <cli/bench/servers/remote.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include <cli/bench/servers/shards.h>

namespace stormo::cli {
namespace {

using transport::HostPort;

constexpr auto kPatience = std::chrono::seconds(30);
/// Of the text of an address.
constexpr std::size_t kAddressBytes = 64;
using AddressText = std::array<char, kAddressBytes>;

/// The addresses that ranks have, in the order of ranks. `mine` may be empty. A collective.
Result<std::vector<HostPort>> gather(comm::Communicator& world, const HostPort& mine) {
  AddressText text{};
  if (!mine.host.empty()) transport::to_string(mine).copy(text.data(), text.size() - 1);
  std::vector<AddressText> all(static_cast<std::size_t>(world.size()));
  STORMO_RETURN_IF_ERROR(world.all_gather(
      comm::Buffer{text.data(), static_cast<std::int64_t>(text.size()), DType::kUInt8},
      comm::Buffer{all.data(), static_cast<std::int64_t>(all.size() * text.size()),
                   DType::kUInt8}));
  std::vector<HostPort> out;
  for (const AddressText& one : all) {
    if (one[0] == 0) continue;
    STORMO_ASSIGN_OR_RETURN(HostPort address, transport::parse_host_port(one.data()));
    out.push_back(std::move(address));
  }
  return out;
}

}  // namespace

Result<std::unique_ptr<RemoteShards>> RemoteShards::create(comm::Communicator& world,
                                                           const transport::Rendezvous& place,
                                                           const std::string& host,
                                                           RemoteRoles roles, int shards,
                                                           std::uint64_t bytes) {
  std::unique_ptr<RemoteShards> out(new RemoteShards(world, roles));
  const bool serves = roles.serves(world.rank());
  const std::uint64_t of_a_server = bytes * static_cast<std::uint64_t>(shards / roles.servers);
  HostPort at, echo;
  if (serves) {
    STORMO_RETURN_IF_ERROR(out->serve(place, host, of_a_server));
    at = out->server_->address();
    STORMO_ASSIGN_OR_RETURN(echo, out->echo_->address());
  }
  STORMO_ASSIGN_OR_RETURN(const auto servers, gather(world, at));
  STORMO_ASSIGN_OR_RETURN(const auto echoes, gather(world, echo));
  if (roles.works(world.rank())) {
    STORMO_ASSIGN_OR_RETURN(out->streams_, EchoClient::connect(echoes, of_a_server));
    STORMO_RETURN_IF_ERROR(out->connect(place, servers, shards, bytes));
  }
  if (serves) STORMO_RETURN_IF_ERROR(out->echo_->accept(roles.workers()));
  STORMO_RETURN_IF_ERROR(world.barrier());
  return out;
}

RemoteShards::~RemoteShards() {
  if (!serving_.joinable()) return;
  session_.reset();  // a server that is not told to finish sees that its workers are gone
  serving_.join();
}

Status RemoteShards::serve(const transport::Rendezvous& place, const std::string& host,
                           std::uint64_t bytes) {
  const HostPort any{host, 0};
  STORMO_ASSIGN_OR_RETURN(echo_, EchoServer::listen(any, bytes));
  STORMO_ASSIGN_OR_RETURN(server_, server::ShardServer::listen({.address = any,
                                                                .ports = place.ports,
                                                                .secret = place.secret,
                                                                .arrival_time = place.join_timeout,
                                                                .on_event = {}}));
  serving_ = std::thread([this] { served_ = server_->serve(-1); });
  return {};
}

Status RemoteShards::connect(const transport::Rendezvous& place,
                             const std::vector<HostPort>& servers, int count, std::uint64_t bytes) {
  const Deadline by = Deadline::after(kPatience);
  server::WorkerSession::Options options{.servers = servers,
                                         .secret = place.secret,
                                         .worker = world_.rank(),
                                         .workers = roles_.workers(),
                                         .share_memory = false,
                                         .hosts = place.cross_size};
  STORMO_ASSIGN_OR_RETURN(session_, server::WorkerSession::connect(std::move(options), by));
  gradient_.assign(bytes / sizeof(float), -1.0F);
  server::RunTerms terms;
  terms.workers = roles_.workers();
  terms.pieces.assign(static_cast<std::size_t>(count),
                      {server::ShardPiece{.end = std::ssize(gradient_)}});
  STORMO_ASSIGN_OR_RETURN(shards_, session_->shards(terms, by));
  return session_->opens() ? session_->open() : Status();
}

Status RemoteShards::push_and_pull() {
  const server::PushedPiece gradient{.array = gradient_.data()};
  const server::PushedGradient pushed{.pieces = {&gradient, 1}, .lr = 1, .sequence = sequence_++};
  for (const auto& shard : shards_) shard->begin_push(pushed);
  for (const auto& shard : shards_) shard->begin_read();  // a shard's own push comes first
  Status outcome;
  const auto note = [&](const Status& status) {
    if (outcome.ok()) outcome = status;
  };
  for (const auto& shard : shards_) note(shard->push(pushed).status());
  for (const auto& shard : shards_) note(shard->read().status());
  return outcome;
}

Result<bool> RemoteShards::counted_all() {
  return counts_all_pushes(world_, sequence_, pointers(shards_));
}

Status RemoteShards::finish() {
  if (session_) STORMO_RETURN_IF_ERROR(session_->finish());
  if (!serving_.joinable()) return {};
  serving_.join();
  return served_;
}

}  // namespace stormo::cli
