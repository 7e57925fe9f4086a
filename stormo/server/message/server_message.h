#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/protocol/server/chief_terms.h>
#include <stormo/protocol/worker_stalls.h>
#include <stormo/server/message/place.h>
#include <stormo/transport/call/fields.h>
#include <stormo/transport/call/frame.h>
#include <stormo/transport/call/reply.h>

namespace stormo::transport {

void fields(auto& visit, Like<ProcessName> auto& process) {
  visit("name of a process", process.pid, process.pid_namespace, process.started);
}

}  // namespace stormo::transport
namespace stormo::protocol {

void fields(auto& visit, transport::Like<ChiefTerm> auto& chief) {
  visit("term of a chief", chief.number, chief.worker);
}

}  // namespace stormo::protocol
namespace stormo::server {

// Messages between a worker and a server on their control connection, as frames: see
// transport/call/fields.h. What answers a request is a transport::Reply.

using transport::encode;
using transport::Like;
inline constexpr std::string_view kServerProtocol = "server";
template <class T>
Result<T> decode(std::string_view bytes) {
  return transport::decode<T>(kServerProtocol, bytes);
}

/// Requests of a worker. Values are wire format: append only.
enum class ServerOp : std::uint8_t {
  kHello = 1,   ///< WorkerHello; the reply is a ServerHello
  kBeat = 2,    ///< WorkerBeat: the worker lives; with backups the reply has ServerNews
  kTerms = 3,   ///< RunTerms; the reply is a list of SharedFile, when the run is open
  kOpen = 4,    ///< by worker 0, the first chief: others may begin
  kFinish = 5,  ///< the worker's end is no loss
  kAttach = 6,  ///< Attachment: the connection becomes a data connection, see data_message.h
  kFail = 7,    ///< by the chief: the run has failed; the body is a text that says why
};

/// The longest body of a frame.
inline constexpr std::size_t kMaxControlBytes = std::size_t{16} << 20;
inline constexpr std::size_t kMaxHostBytes = 128;
inline constexpr std::size_t kMaxAddressBytes = 300;
inline constexpr std::size_t kMaxDoingBytes = 200;
inline constexpr std::int64_t kMaxPieceElements = std::int64_t{1} << 40;
/// The id of a reply that answers no request: the server ends, and says why.
inline constexpr std::uint32_t kFarewell = 0;
/// The id of the reply to kBeat: the server lives, too.
inline constexpr std::uint32_t kBeatId = 1;
/// The id of a reply that answers no request: a text for the people who watch the worker.
inline constexpr std::uint32_t kNotice = 2;

inline transport::FrameSplitter control_frames() { return {kServerProtocol, kMaxControlBytes}; }

struct ServerRequest {
  ServerOp op = ServerOp::kBeat;
  std::uint32_t id = 0;   ///< chosen by the worker, returned in the reply
  std::string_view body;  ///< borrowed
};
void fields(auto& visit, Like<ServerRequest> auto& request) {
  visit("request", transport::within(request.op, ServerOp::kHello, ServerOp::kFail), request.id,
        transport::rest(request.body));
}

void fields(auto& visit, Like<Place> auto& place) {
  visit("place", transport::at_most(kMaxHostBytes, place.host), place.process);
}

/// A worker introduces itself; or the server whose part this one has a copy of, as the worker with
/// the number workers + server.
struct WorkerHello {
  std::int32_t worker = 0, workers = 1;
  std::int32_t server = 0, servers = 1;  ///< which server the worker takes this one for
  std::uint64_t token = 0;               ///< of the worker's session; random
  std::int64_t timeout_ns = 0;           ///< lost when silent for longer
  Place place;
  bool backups = false;        ///< whether every server has a copy of its predecessor's part
  std::string successor = {};  ///< with backups: address of the server that has a copy of this one
  bool operator==(const WorkerHello&) const = default;
};
void fields(auto& visit, Like<WorkerHello> auto& hello) {
  visit("hello of a worker", hello.worker, hello.workers, hello.server, hello.servers, hello.token,
        hello.timeout_ns, hello.place, hello.backups,
        transport::at_most(kMaxAddressBytes, hello.successor));
}

/// A memory file of a server's process, for workers on its host.
struct SharedFile {
  std::int32_t fd = -1;  ///< in the server's process; -1: there is none
  std::uint64_t bytes = 0;
  bool operator==(const SharedFile&) const = default;
};
void fields(auto& visit, Like<SharedFile> auto& file) { visit("memory file", file.fd, file.bytes); }

struct ServerHello {
  Place place;
  SharedFile ledger;
  protocol::ChiefTerm chief = {};  ///< of the run, as far as the server knows
  bool operator==(const ServerHello&) const = default;
};
void fields(auto& visit, Like<ServerHello> auto& hello) {
  visit("hello of a server", hello.place, hello.ledger, hello.chief);
}

/// What is said about the chief and about servers with beats.
struct ServerNews {
  protocol::ChiefTerm chief = {};             ///< the latest one that the sender knows
  bool is_over = false;                       ///< by a server: the chief has finished the run
  std::vector<std::int32_t> lost = {};        ///< decided by the chief, and passed on
  std::vector<std::int32_t> complaints = {};  ///< by a server: neighbours that it has lost
  bool operator==(const ServerNews&) const = default;
};
void fields(auto& visit, Like<ServerNews> auto& news) {
  visit("news of servers", news.chief, news.is_over, news.lost, news.complaints);
}

/// What a worker says with each beat. A server that is a worker's predecessor says nothing.
struct WorkerBeat {
  protocol::WorkerPace state;
  ServerNews news = {};  ///< of the chief
  bool operator==(const WorkerBeat&) const = default;
};
void fields(auto& visit, Like<WorkerBeat> auto& beat) {
  visit("beat of a worker", beat.state.progress, beat.state.steps, beat.state.waits,
        beat.state.finishes, transport::at_most(kMaxDoingBytes, beat.state.doing), beat.news);
}

}  // namespace stormo::server
