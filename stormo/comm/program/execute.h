#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/comm/kernels/kernels.h>
#include <stormo/comm/program/partition.h>
#include <stormo/comm/program/program.h>
#include <stormo/comm/request.h>
#include <stormo/transport/shm/peer_memory.h>
#include <stormo/transport/transport.h>

namespace stormo::comm {

/// Several buffers seen as one sequence of elements, which is divided into chunks.
class Layout {
 public:
  void assign(std::span<const Buffer> buffers);
  std::int64_t count() const { return ends_.empty() ? 0 : ends_.back(); }
  std::size_t num_buffers() const { return ends_.size(); }
  /// Elements before buffer b.
  std::int64_t begin_of(std::size_t b) const { return b == 0 ? 0 : ends_[b - 1]; }

  /// Calls f(buffer index, first element in the buffer, number of elements) for each buffer that
  /// the extent overlaps.
  template <class F>
  void for_pieces(plan::Extent extent, F&& f) const {
    std::int64_t begin = 0;
    for (std::size_t b = 0; b < ends_.size() && begin < extent.end; begin = ends_[b++]) {
      const std::int64_t from = std::max(extent.begin, begin);
      const std::int64_t to = std::min(extent.end, ends_[b]);
      if (from < to) f(b, from - begin, to - from);
    }
  }

 private:
  std::vector<std::int64_t> ends_;
};

/// Addresses in this process of one rank's memories: the address of element 0 of each buffer. If
/// only a part of the whole exists or is mapped, element 0 itself may not be accessible.
struct RankMemory {
  std::vector<std::uintptr_t> in;
  std::vector<std::uintptr_t> out;
  std::uintptr_t scratch = 0;
  const transport::PeerMemory* unmapped =
      nullptr;  ///< access to memory that is not mapped; null: all is mapped
};

/// Everything a Program works on.
struct Operands {
  DType dtype = DType::kFloat32;
  Kernel kernel = nullptr;  ///< of the dtype
  Combine how = Combine::kSum;
  const UserReduction* user = nullptr;  ///< instead of `how`
  Tag tag = 0;                          ///< of every message: the operation's fingerprint
  Partition partition;
  Layout layout;  ///< of several buffers, all in place; with one buffer it has one entry
  int local_rank = 0;
  std::vector<RankMemory> memory;  ///< by local rank
  std::vector<double> scales;      ///< by local rank; 0: that rank is not read
};

/// Temporary memory of executions, kept between operations to avoid allocations.
struct Workspace {
  std::vector<std::byte> received;  ///< not yet reduced
  std::vector<std::byte> stage;     ///< reduced, not yet copied to its destination
  std::vector<std::byte> fetched;   ///< blocks of peers' private buffers
  std::vector<Operand> sources;     ///< of the current reduction
  std::vector<void*> destinations;
};

/// The communication that an execution needs.
struct Executor {
  transport::Transport* network = nullptr;  ///< to other hosts; null when there are none
  std::function<Status(Deadline)> barrier;  ///< a barrier of all ranks of this host
  Workspace* workspace = nullptr;
};

/// Runs this rank's program; blocks until its end, at most until `by`. Borrows all arguments. On
/// error the data is unspecified. Cost: analysis::cost of the schedule, which a test compares with
/// the transport's counters.
Status execute(const Program& program, const Operands& operands, const Executor& executor,
               Deadline by);

}  // namespace stormo::comm
