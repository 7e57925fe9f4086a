#include <stormo/server/message/server_message.h>

#include <fmt/format.h>

#include <stormo/transport/store/frame.h>
#include <stormo/transport/store/wire.h>

namespace stormo::server {
namespace {

using transport::put;
using transport::put_bytes;
using transport::WireReader;

Status corrupt(std::string_view what) {
  return {Code::kCorrupt, fmt::format("server protocol: {}", what)};
}

void put_place(std::string& out, const Place& place) {
  put_bytes(out, place.host);
  put(out, static_cast<std::int32_t>(place.process.pid));
  put(out, place.process.pid_namespace);
  put(out, place.process.started);
}

void read_place(WireReader& in, Place& place) {
  std::string_view host;
  std::int32_t pid = 0;
  in.read_bytes(kMaxHostBytes, host);
  in.read(pid);
  in.read(place.process.pid_namespace);
  in.read(place.process.started);
  place.host = host;
  place.process.pid = pid;
}

void put_servers(std::string& out, const std::vector<std::int32_t>& servers) {
  put(out, static_cast<std::uint32_t>(servers.size()));
  for (const std::int32_t server : servers) put(out, server);
}

void read_servers(WireReader& in, std::vector<std::int32_t>& servers) {
  std::uint32_t count = 0;
  in.read(count);
  for (std::int32_t server = 0; servers.size() < count && in.read(server);) {
    servers.push_back(server);
  }
}

void put_chief(std::string& out, const protocol::ChiefTerm& chief) {
  put(out, chief.number);
  put(out, chief.worker);
}

void read_chief(WireReader& in, protocol::ChiefTerm& chief) {
  in.read(chief.number);
  in.read(chief.worker);
}

void put_news(std::string& out, const ServerNews& news) {
  put_chief(out, news.chief);
  put(out, static_cast<std::uint8_t>(news.is_over));
  put_servers(out, news.lost);
  put_servers(out, news.complaints);
}

/// False for what no sender says.
bool read_news(WireReader& in, ServerNews& news) {
  std::uint8_t is_over = 0;
  read_chief(in, news.chief);
  in.read(is_over);
  read_servers(in, news.lost);
  read_servers(in, news.complaints);
  news.is_over = is_over == 1;
  return is_over <= 1;
}

void put_file(std::string& out, const SharedFile& file) {
  put(out, file.fd);
  put(out, file.bytes);
}

void read_file(WireReader& in, SharedFile& file) {
  in.read(file.fd);
  in.read(file.bytes);
}

}  // namespace

std::string encode(const ServerRequest& request) {
  std::string head;
  put(head, static_cast<std::uint8_t>(request.op));
  put(head, request.id);
  return transport::frame(head, request.body);
}

std::string encode(const ServerReply& reply) {
  std::string head;
  put(head, reply.id);
  put(head, static_cast<std::uint8_t>(reply.code));
  return transport::frame(head, reply.body);
}

Result<ServerRequest> decode_server_request(std::string_view body) {
  constexpr std::size_t kHead = 1 + 4;
  WireReader in(body.substr(0, std::min(kHead, body.size())));
  std::uint8_t op = 0;
  ServerRequest out;
  in.read(op);
  in.read(out.id);
  if (!in.done()) return corrupt("malformed request");
  if (op < static_cast<std::uint8_t>(ServerOp::kHello) ||
      op > static_cast<std::uint8_t>(ServerOp::kFail)) {
    return corrupt(fmt::format("unknown operation {}", op));
  }
  out.op = static_cast<ServerOp>(op);
  out.body = body.substr(kHead);
  return out;
}

Result<ServerReply> decode_server_reply(std::string_view body) {
  constexpr std::size_t kHead = 4 + 1;
  WireReader in(body.substr(0, std::min(kHead, body.size())));
  std::uint8_t code = 0;
  ServerReply out;
  in.read(out.id);
  in.read(code);
  if (!in.done() || code > static_cast<std::uint8_t>(Code::kException)) {
    return corrupt("malformed reply");
  }
  out.code = static_cast<Code>(code);
  out.body = body.substr(kHead);
  return out;
}

std::string encode(const WorkerHello& hello) {
  std::string out;
  for (const std::int32_t n : {hello.worker, hello.workers, hello.server, hello.servers}) {
    put(out, n);
  }
  put(out, hello.token);
  put(out, hello.timeout_ns);
  put_place(out, hello.place);
  put(out, static_cast<std::uint8_t>(hello.backups));
  put_bytes(out, hello.successor);
  return out;
}

Result<WorkerHello> decode_worker_hello(std::string_view bytes) {
  WireReader in(bytes);
  WorkerHello out;
  for (std::int32_t* n : {&out.worker, &out.workers, &out.server, &out.servers}) in.read(*n);
  in.read(out.token);
  in.read(out.timeout_ns);
  read_place(in, out.place);
  std::uint8_t backups = 0;
  std::string_view successor;
  in.read(backups);
  in.read_bytes(kMaxAddressBytes, successor);
  if (!in.done() || backups > 1) return corrupt("malformed hello of a worker");
  out.backups = backups == 1;
  out.successor = successor;
  return out;
}

std::string encode(const ServerHello& hello) {
  std::string out;
  put_place(out, hello.place);
  put_file(out, hello.ledger);
  put_chief(out, hello.chief);
  return out;
}

Result<ServerHello> decode_server_hello(std::string_view bytes) {
  WireReader in(bytes);
  ServerHello out;
  read_place(in, out.place);
  read_file(in, out.ledger);
  read_chief(in, out.chief);
  if (!in.done()) return corrupt("malformed hello of a server");
  return out;
}

std::string encode(const ServerNews& news) {
  std::string out;
  put_news(out, news);
  return out;
}

Result<ServerNews> decode_server_news(std::string_view bytes) {
  WireReader in(bytes);
  ServerNews out;
  const bool is_possible = read_news(in, out);
  if (!in.done() || !is_possible) return corrupt("malformed news of servers");
  return out;
}

std::string encode(const WorkerBeat& beat) {
  std::string out;
  put(out, beat.state.progress);
  put(out, beat.state.steps);
  put(out, static_cast<std::uint8_t>((beat.state.waits ? 1 : 0) + (beat.state.finishes ? 2 : 0)));
  put_bytes(out, std::string_view(beat.state.doing).substr(0, kMaxDoingBytes));
  put_news(out, beat.news);
  return out;
}

Result<WorkerBeat> decode_worker_beat(std::string_view bytes) {
  WireReader in(bytes);
  WorkerBeat out;
  std::uint8_t flags = 0;
  std::string_view doing;
  in.read(out.state.progress);
  in.read(out.state.steps);
  in.read(flags);
  in.read_bytes(kMaxDoingBytes, doing);
  const bool is_possible = read_news(in, out.news);
  if (!in.done() || !is_possible || flags > 3) return corrupt("malformed beat of a worker");
  out.state.waits = (flags & 1) != 0;
  out.state.finishes = (flags & 2) != 0;
  out.state.doing = doing;
  return out;
}

std::string encode(const std::vector<SharedFile>& shards) {
  std::string out;
  put(out, static_cast<std::uint32_t>(shards.size()));
  for (const SharedFile& file : shards) put_file(out, file);
  return out;
}

Result<std::vector<SharedFile>> decode_shard_files(std::string_view bytes) {
  WireReader in(bytes);
  std::uint32_t count = 0;
  in.read(count);
  std::vector<SharedFile> out;
  constexpr std::size_t kFileBytes = 4 + 8;
  if (count > bytes.size() / kFileBytes) return corrupt("malformed list of shards");
  for (std::uint32_t i = 0; i < count; ++i) read_file(in, out.emplace_back());
  if (!in.done()) return corrupt("malformed list of shards");
  return out;
}

}  // namespace stormo::server
