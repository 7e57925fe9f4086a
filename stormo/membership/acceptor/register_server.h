#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include <stormo/base/status.h>
#include <stormo/membership/acceptor/acceptor_file.h>
#include <stormo/transport/net/port_range.h>
#include <stormo/transport/net/secret.h>
#include <stormo/transport/net/socket.h>

namespace stormo::membership {

/// An acceptor of a register, for whoever knows the job's secret. It has one thread, which also
/// waits for the disk: an answer leaves when what it says is there.
class RegisterServer {
 public:
  struct Options {
    transport::HostPort address;  ///< port 0: any of `ports`
    transport::PortRange ports;
    transport::Secret secret;
    /// Gets a line for each refused connection, and when the disk fails. On the server's thread.
    std::function<void(const std::string&)> on_event;
  };
  /// kExhausted when no port is free.
  static Result<std::unique_ptr<RegisterServer>> start(AcceptorFile file, Options options);
  virtual ~RegisterServer() = default;  ///< ends the thread and the connections

  virtual transport::HostPort address() const = 0;
  /// Proposers that are connected. Any thread.
  virtual std::size_t connections() const = 0;
};

}  // namespace stormo::membership
