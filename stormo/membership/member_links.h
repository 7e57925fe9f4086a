#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/protocol/elastic/elastic_message.h>
#include <stormo/transport/net/port_range.h>
#include <stormo/transport/net/secret.h>
#include <stormo/transport/net/socket.h>

namespace stormo::membership {

/// The connections by which members of an elastic job speak to each other. Each member opens one to
/// each other. It has one thread, on which all functions of its options are called, the first ones
/// perhaps before start() has returned. They may call all members of this class.
class MemberLinks {
 public:
  struct Options {
    protocol::MemberId me;
    transport::HostPort address;  ///< port 0: any of `ports`
    transport::PortRange ports;
    transport::Secret secret;  ///< of the job
    std::function<void(const protocol::ElasticMessage&)> on_message;
    /// The process of a member has ended, for certain: the kernel of its host has closed a
    /// connection that had not been said goodbye on; or has broken one, and then nobody listens any
    /// more where the member did. What it had sent before has been given to on_message. A
    /// connection that times out says nothing of the kind. A child that was forked without exec()
    /// keeps its parent's connections open: then the end is not seen before the child has ended.
    std::function<void(const protocol::MemberId&)> on_ended;
    /// A timer of the owner: called after all that happens, and after wake(). Returns when it has
    /// to be called next.
    std::function<TimePoint(TimePoint now)> on_tick;
    /// Gets a line for each connection that is refused, and for a peer that cannot be reached
    /// because of its address or settings.
    std::function<void(const std::string&)> on_event;
  };
  /// kExhausted when no port is free.
  static Result<std::unique_ptr<MemberLinks>> start(Options options);
  /// Ends the thread, and says goodbye: the others do not take this for the end of a process.
  virtual ~MemberLinks() = default;

  virtual transport::HostPort address() const = 0;
  /// Whom to reach, and where: members, and those that want to join. An identity whose address or
  /// incarnation is another one than before gets a new connection. Whoever is not in the list is
  /// reached by the connection that it has opened. Waits for a name server if an address is a name.
  /// Any thread.
  virtual void set_peers(const std::vector<protocol::ElasticEntry>& peers) = 0;
  /// To the present process of an identity, over a connection that either end has opened. Never
  /// waits for the peer, and may be lost. Of messages that the socket does not take, or for which
  /// there is no connection yet, the last one of each kind is kept. What arrives keeps its order.
  /// Any thread.
  virtual void send(const std::string& identity, const protocol::ElasticMessage& message) = 0;
  /// on_tick soon. Any thread.
  virtual void wake() = 0;
};

}  // namespace stormo::membership
