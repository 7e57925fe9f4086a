#pragma once

#include <cstdint>
#include <vector>

#include <stormo/base/clock.h>

namespace stormo::transport {

/// What this process has sent to other hosts in exchanges of bulk data, by any transport.
struct BulkSent {
  std::uint64_t bytes = 0;  ///< of payload
  // While the kernel was watched, which is most of the time that the bytes took:
  std::uint64_t acknowledged = 0;  ///< bytes
  Duration under_way{};  ///< for so long some were, besides those for which the reader had no room

  /// What `bytes` take at that rate; zero as long as none is known.
  double seconds() const;
  BulkSent since(const BulkSent& before) const;
};
/// Any thread.
BulkSent bulk_sent();

/// Asks the kernel how long bytes of bulk data are under way (TCP_INFO): from the beginning of one
/// exchange to that of the next one, because the last bytes are sent after an exchange has
/// returned. Small messages are not measured: the kernel of the reader may take its time to
/// acknowledge them. Used by one thread at a time. Two system calls for each connection and
/// exchange.
class SendTimes {
 public:
  /// An exchange begins: the measurement of the one before it ends.
  void end();
  /// Payload that is going to be sent in it.
  void add(std::uint64_t bytes);
  /// Over this socket, which stays open until end(), and others at the same time.
  void watch(int fd);

 private:
  struct Socket {
    int fd = -1;
    std::uint64_t acknowledged = 0;
    std::uint64_t under_way_us = 0;
  };
  std::vector<Socket> sockets_;
};

}  // namespace stormo::transport
