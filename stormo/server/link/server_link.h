#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/server/message/server_message.h>
#include <stormo/transport/call/frame_connection.h>
#include <stormo/transport/call/loop_thread.h>
#include <stormo/transport/health.h>
#include <stormo/transport/net/dialer.h>
#include <stormo/transport/net/secret.h>
#include <stormo/transport/net/socket.h>
#include <stormo/transport/shm/peer_process.h>

namespace stormo::server {

/// A worker's control connection to one server, with a thread that says that the worker lives, and
/// that connects again when the connection breaks. The server is lost when it has said farewell,
/// when its process on this host has ended, or when nothing was heard of it for the timeout. In a
/// run with backups also when it was not connected and nothing was heard of it for one second.
class ServerLink {
 public:
  struct Options {
    transport::HostPort server;
    transport::Secret secret;
    WorkerHello hello;
    /// What the next beat says. Called by the link's thread. May be empty.
    std::function<std::string()> beat = {};
    /// Of a run with backups: what the answer to a beat says. Then beats go on also once the server
    /// is lost: one that lives learns that it counts as lost. Called by the link's thread. May be
    /// empty.
    std::function<void(std::string_view)> on_answer = {};
    /// Gets a line of the server for people; called by the link's thread. May be empty.
    std::function<void(std::string_view)> on_notice = {};
    /// Called by a thread that waits for the server or for other workers, a few times a second, and
    /// where its call begins. May be empty.
    std::function<void()> on_wait = {};
    /// Another one may declare the server lost.
    std::shared_ptr<transport::Health> health = std::make_shared<transport::Health>();
  };
  /// Begins to connect to a server that runs: if it does not answer in time, it is lost. kIo
  /// without descriptors.
  static Result<std::unique_ptr<ServerLink>> begin(Options options);
  /// Connects and says hello, at most until `by`: the server may start later, and a process that
  /// had the worker's number may still be there.
  static Result<std::unique_ptr<ServerLink>> connect(Options options, Deadline by);
  ~ServerLink() { loop_.stop(); }

  /// Blocks until the answer, at most until `by`. One call at a time. A request may be sent twice,
  /// when the connection breaks.
  Result<std::string> ask(ServerOp op, std::string body, Deadline by);
  /// OK until the server is lost; then why: kPeerLost, or kCancelled when the chief has told that
  /// the run failed. Any thread.
  Status status() const { return options_.health->status(); }
  /// The same for a thread that begins a call, or waits and asks a few times a second:
  /// Options::on_wait hears of it.
  Status status_while_waiting() const {
    if (options_.on_wait) options_.on_wait();
    return status();
  }
  /// To a server, in the name of a worker. A failure when it has no address.
  static Result<std::unique_ptr<transport::Dialer>> dial(const Options& options);
  /// What status() says of a lost server, whoever has noticed it.
  static Status lost(const transport::HostPort& server, const std::string& why,
                     Code code = Code::kPeerLost);
  /// From now on the server is lost.
  void give_up(const std::string& why, Code code = Code::kPeerLost);
  const ServerHello& server() const { return server_; }
  const Options& options() const { return options_; }

 private:
  struct Question {
    std::uint32_t id = 0;
    std::string request;
    bool is_sent = false;  // on the present connection
    std::optional<Result<std::string>> answer;
  };

  ServerLink(Options options, bool may_start_later)
      : options_(std::move(options)), may_start_later_(may_start_later) {}
  Status start();
  void turn();
  void dial(TimePoint now);
  Status talk(TimePoint now);
  Status take_replies(TimePoint now);
  Status take_hello(const transport::Reply& reply);
  void send_due(TimePoint now);
  void disconnect(TimePoint now, const Status& why);
  void look_whether_lost(TimePoint now);

  const Options options_;
  const bool may_start_later_;
  Duration timeout_{};
  // of the link's thread
  std::unique_ptr<transport::Dialer> dialer_;
  std::optional<transport::FrameConnection> connection_;
  bool is_greeted_ = false;  // on the present connection
  TimePoint next_beat_{}, next_dial_{}, heard_{}, last_turn_{};
  std::optional<transport::PeerProcess> process_;
  std::string last_failure_ = "no answer yet";  // guarded by mutex_

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool was_greeted_ = false;
  ServerHello server_;  // constant once was_greeted_
  Status refused_;
  std::string busy_;  // why the server had no place for this worker
  std::optional<Question> question_;
  std::uint32_t next_id_ = 4;
  transport::LoopThread loop_;
};

}  // namespace stormo::server
