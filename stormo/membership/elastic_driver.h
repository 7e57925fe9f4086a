#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/membership/register.h>
#include <stormo/protocol/elastic/elastic_member.h>
#include <stormo/transport/net/port_range.h>
#include <stormo/transport/net/secret.h>
#include <stormo/transport/net/socket.h>

namespace stormo::membership {

/// Runs a protocol::ElasticMember in a process: its messages go over MemberLinks, its questions to
/// a Register, time comes from the clock. What is left for the main thread is to follow orders, and
/// to tell what became of them.
///
/// It has three threads: that of the links, one for the register, which blocks, and one that makes
/// groups fail, which may block for a second.
class ElasticDriver {
 public:
  using Order = std::variant<protocol::StartGroup, protocol::RunStep, protocol::AgreeOn,
                             protocol::ApplyUpdate, protocol::HashState, protocol::PauseMember,
                             protocol::EndMember>;
  struct Options {
    std::string job;
    protocol::MemberId me;
    std::unique_ptr<Register> membership;
    transport::HostPort listen;  ///< where others reach this member; port 0: any of `ports`
    transport::PortRange ports;
    transport::Secret secret;
    std::string store;  ///< address of the Store that this process serves
    /// The group of this epoch is to fail: whoever waits in it returns. On a thread of the driver.
    std::function<void(Epoch)> abort;
    /// Ends this process at once: its main thread does not come back. On a thread of the driver.
    std::function<void()> end_process;
    /// The group of this wish is to be made: GroupReady is told when it is there. Does not block.
    std::function<void(const protocol::ElasticRecord&)> prepare;
    /// A line for people. On a thread of the driver, or that of tell().
    std::function<void(const std::string&)> say;
  };
  /// Listens; others can reach this member at address(). kExhausted when no port is free.
  static Result<std::unique_ptr<ElasticDriver>> open(Options options);
  virtual ~ElasticDriver() = default;  ///< ends the threads and the connections

  /// Text of a MemberAddress.
  virtual std::string address() const = 0;
  /// By whoever makes the job's first record, before any member begins. Blocks. kInvalidArgument
  /// when there is a record already.
  virtual Status write_first(const protocol::ElasticRecord& record, Deadline by) = 0;
  /// Starts the member: it reads the register and follows what is there. `options.address` is
  /// filled in.
  virtual void begin(protocol::ElasticOptions options) = 0;

  /// Tells the member what has become of an order, or what has happened. Any thread; does not
  /// block. After begin().
  virtual void tell(const protocol::ElasticInput& input) = 0;
  /// The next order; blocks until there is one, at most until `by`. The last one is EndMember. One
  /// thread.
  virtual std::optional<Order> next(Deadline by) = 0;
  /// Gives back an order that next() has returned: it is the next one again.
  virtual void unread(Order order) = 0;
  /// The main thread has come forward; `waits`: from now on it waits for other members. Cheap.
  virtual void note_progress(bool waits) = 0;
  virtual protocol::ElasticRecord record() const = 0;  ///< of the present epoch
  /// How long nothing has come from any other member.
  virtual Duration silence() const = 0;
};

}  // namespace stormo::membership
