#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/protocol/server/server_verdicts.h>
#include <stormo/server/server_message.h>
#include <stormo/transport/health.h>
#include <stormo/transport/net/socket.h>

namespace stormo::server {

/// What one worker's session knows of which servers of a run with backups are lost. The chief's
/// decides it. Thread-safe; its functions are called by the threads of all links.
class ServerBoard {
 public:
  ServerBoard(std::vector<transport::HostPort> servers, bool is_chief);

  /// Of the link to a server: fails when the server is lost.
  const std::shared_ptr<transport::Health>& health(std::size_t server) const {
    return health_[server];
  }
  /// What the next beat says: the chief's verdicts.
  ServerNews beat();
  /// The answer of a server to a beat. The chief decides about complaints; others believe what
  /// servers have heard of the chief. Malformed news are ignored.
  void take(std::size_t server, std::string_view answer);
  /// The run is over: servers that end are not lost.
  void rest();

 private:
  void lose(std::int32_t server, const std::string& why);

  const std::vector<transport::HostPort> servers_;
  const bool is_chief_;
  std::vector<std::shared_ptr<transport::Health>> health_;  // by server
  std::mutex mutex_;                                        // guards what follows
  protocol::ServerVerdicts verdicts_;                       // of the chief
  bool is_over_ = false;
};

}  // namespace stormo::server
