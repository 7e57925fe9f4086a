#pragma once

#include <memory>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/transport/net/dialer.h>
#include <stormo/transport/net/secret.h>

namespace stormo::cli {

/// Looks whether the servers of a run are there, for a process that is no worker. Never blocks.
class ServerProbe {
 public:
  /// `first`: how long the first answer may take; `patience`: how long the others may.
  ServerProbe(std::vector<transport::HostPort> servers, transport::Secret secret, Duration first,
              Duration patience);

  /// Whether no server has answered for too long. To be called several times per second. `began`:
  /// the servers have been there, as the caller knows from elsewhere.
  bool are_gone(TimePoint now, bool began);

 private:
  std::unique_ptr<transport::Dialer> dial(const transport::HostPort& server) const;

  std::vector<transport::HostPort> servers_;
  transport::Secret secret_;
  Duration patience_;
  TimePoint gone_at_;
  bool began_ = false;
  TimePoint next_{};                                       // when to ask again
  std::vector<std::unique_ptr<transport::Dialer>> dials_;  // by server; null: none now
};

}  // namespace stormo::cli
