#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/protocol/server/chief_terms.h>
#include <stormo/protocol/server/server_verdicts.h>
#include <stormo/server/message/server_message.h>
#include <stormo/transport/health.h>
#include <stormo/transport/net/socket.h>

namespace stormo::server {

/// What one worker's session knows of a run with backups: who is the chief, and which servers are
/// lost, which the chief's session decides. Thread-safe; its functions are called by the threads of
/// all links.
class ServerLiveness {
 public:
  ServerLiveness(std::vector<transport::HostPort> servers, int worker);

  /// Of a server that was greeted.
  void learn(const protocol::ChiefTerm& chief);
  /// This worker opens the run: it is the first chief.
  void open();
  /// Whether this worker is the chief, and all servers that are left know it.
  bool is_chief() const;
  /// The chief has finished the run.
  bool is_over() const;

  /// Of the link to a server: fails when the server is lost.
  const std::shared_ptr<transport::Health>& health(std::size_t server) const {
    return health_[server];
  }
  /// What the next beat says: the chief's verdicts.
  ServerNews beat();
  /// The answer of a server to a beat. The chief decides about complaints; others believe what
  /// servers have heard of the chief. One that learns that another worker is the chief now has lost
  /// all servers. Malformed news are ignored.
  void take(std::size_t server, std::string_view answer);
  /// The run is over: servers that end are not lost.
  void rest();

 private:
  void lose(std::int32_t server, const std::string& why);
  void take_term(const protocol::ChiefTerm& chief);
  bool decides() const { return chief_.worker == worker_; }
  bool has_heard_all() const;

  const std::vector<transport::HostPort> servers_;
  const int worker_;
  std::vector<std::shared_ptr<transport::Health>> health_;  // by server
  mutable std::mutex mutex_;                                // guards what follows
  protocol::ChiefTerm chief_;
  bool has_led_ = false;               // this worker, as the chief
  std::vector<bool> heard_;            // servers that know the chief's term
  protocol::ServerVerdicts verdicts_;  // of the chief
  bool is_resting_ = false;            // the run is over for this worker
  bool is_over_ = false;
};

}  // namespace stormo::server
