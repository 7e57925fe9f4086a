#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/server/link/server_link.h>
#include <stormo/server/message/data_message.h>
#include <stormo/server/message/server_message.h>
#include <stormo/transport/call/frame.h>
#include <stormo/transport/call/frame_connection.h>
#include <stormo/transport/call/loop_thread.h>
#include <stormo/transport/net/dialer.h>
#include <stormo/transport/net/socket.h>

namespace stormo::server {

using transport::ByteRanges;

/// A request on its way, and its reply.
struct DataCall {
  DataRequest request;
  ByteRanges bytes;  ///< what is sent: the request, then the payload, borrowed until it is done
  ByteRanges sink;   ///< gets the payload of a reply that is OK; borrowed likewise
  /// Makes the sink for a reply from its body, where that says how long the payload is; or empty.
  /// Called by the link's thread, again when a reply comes again.
  std::function<Result<ByteRanges>(std::string_view body)> place;
  // guarded by the link, until done:
  bool is_done = false;
  std::size_t arrived = 0;  ///< bytes in `sink` that will not change
  Status status;
  std::string body;  ///< of the reply: the result as bytes
};

/// A worker's data connection to the server of a part of the run, whose memory it does not map,
/// with a thread that sends requests and receives replies. Several requests may be on their way: a
/// request does not wait for the reply to the one before. When the connection breaks, it connects
/// again and repeats what has no reply; the server executes each request once. When the server is
/// lost, it goes on in the same way with the next one that holds the part. All calls fail when none
/// is left.
class DataLink {
 public:
  /// `servers`: at least one, in the order in which they are used. `coordinates`: see Attachment.
  DataLink(std::vector<std::shared_ptr<ServerLink>> servers, int part, bool coordinates = false);
  ~DataLink();

  /// Gives a request a number and sends it; does not block.
  std::shared_ptr<DataCall> start(DataRequest request, ByteRanges payload = {},
                                  ByteRanges sink = {}, decltype(DataCall::place) place = {});
  /// Blocks until the reply, or until so many bytes of its payload have arrived. A reply that is
  /// repeated, after a connection has broken, has the same bytes.
  Status wait(const DataCall& call, std::size_t bytes = std::numeric_limits<std::size_t>::max());
  /// Does not block: nothing while there is no reply.
  std::optional<Status> outcome(const DataCall& call);
  /// Blocks until the reply; its result as bytes.
  Result<std::string> call(DataRequest request, ByteRanges payload = {}, ByteRanges sink = {}) {
    const auto begun = start(std::move(request), std::move(payload), std::move(sink));
    STORMO_RETURN_IF_ERROR(wait(*begun));
    return std::move(begun->body);
  }
  /// The result as what it is.
  template <class T>
  Result<T> ask(DataRequest request) {
    STORMO_ASSIGN_OR_RETURN(const std::string result, call(std::move(request)));
    return decode<T>(result);
  }

 private:
  enum class Stage { kApart, kDialing, kAttaching, kReady };

  void turn();
  bool has_calls();
  void dial(TimePoint now);
  Status attach();
  Status send_calls();
  Status receive_replies();
  void disconnect(TimePoint now);
  void fail_all(const Status& why);

  ServerLink& control() const { return *servers_[current_]; }
  /// For the next one; if there is none, all calls fail.
  void leave_server(TimePoint now, const Status& lost);

  std::vector<std::shared_ptr<ServerLink>> servers_;
  const int part_;
  const bool coordinates_;
  // of the thread
  std::size_t current_ = 0;  // of servers_
  Stage stage_ = Stage::kApart;
  std::unique_ptr<transport::Dialer> dialer_;
  transport::Channel socket_;
  std::optional<transport::FrameConnection> attaching_;
  TimePoint next_dial_{};
  std::size_t sent_calls_ = 0;  // of calls_, on the present connection
  bool is_blocked_ = false;     // the socket has not taken all of the call after these
  transport::FrameReceiver heads_{kServerProtocol, kMaxControlBytes};
  std::optional<transport::Reply> reply_;  // its payload is being received

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<std::shared_ptr<DataCall>> calls_;  // without a reply, in order
  std::uint64_t next_id_ = 1;
  transport::LoopThread loop_;
};

}  // namespace stormo::server
