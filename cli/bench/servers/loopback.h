#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include <stormo/comm/communicator.h>
#include <stormo/transport/net/socket.h>

namespace stormo::cli {

/// The least that a server behind a socket does, as an opponent: rank 0 has a thread for each rank,
/// with a TCP connection on the loopback interface. It takes gradients and sends as many bytes
/// back. There are no messages to encode, and no weights to update.
class LoopbackServer {
 public:
  /// A collective. kIo without sockets.
  static Result<std::unique_ptr<LoopbackServer>> create(comm::Communicator& world, int keys,
                                                        std::uint64_t bytes);
  ~LoopbackServer();
  LoopbackServer(const LoopbackServer&) = delete;

  /// For each key: sends a gradient, and gets its weights.
  Status push_and_pull();

 private:
  LoopbackServer(int keys, std::uint64_t bytes) : keys_(keys), buffer_(bytes) {}
  Result<std::int64_t> listen();
  Status accept_all(int ranks);

  int keys_;
  std::vector<std::byte> buffer_;
  transport::Descriptor listener_;         // of rank 0
  std::vector<transport::Descriptor> to_;  // of rank 0: to each rank
  std::vector<std::thread> threads_;       // one for each of these
  transport::Descriptor server_;           // to rank 0
};

}  // namespace stormo::cli
