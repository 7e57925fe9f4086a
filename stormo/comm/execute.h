#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/comm/buffer.h>
#include <stormo/comm/kernels.h>
#include <stormo/comm/program.h>
#include <stormo/transport/transport.h>

namespace stormo::comm {

/// Several buffers seen as one run of elements, which is what chunks are cut from.
class Layout {
 public:
  void assign(std::span<const Buffer> buffers);
  std::int64_t count() const { return ends_.empty() ? 0 : ends_.back(); }
  std::size_t num_buffers() const { return ends_.size(); }

  /// Calls f(buffer index, first element in the buffer, number of elements) for each stretch of the
  /// extent that lies in one buffer.
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

/// Everything a Program works on.
struct Operands {
  DType dtype = DType::kFloat32;
  Combine how = Combine::kSum;
  Tag tag = 0;  ///< of every message: the operation's fingerprint
  Layout layout;
  int local_rank = 0;
  std::vector<std::vector<std::byte*>> memory;  ///< by local rank and buffer, all addressable here
  std::vector<double> scales;                   ///< by local rank; 0: that rank is not read
};

/// What an execution needs of the world.
struct Executor {
  transport::Transport* wire = nullptr;  ///< to other hosts; null when there are none
  std::function<Status(Deadline)> meet;  ///< all ranks of this host
  std::vector<std::byte>* staging =
      nullptr;  ///< kept between operations: received, not yet reduced
};

/// Runs this rank's program. Borrows everything until it returns. On error the data is unspecified.
/// Cost: analysis::cost of the schedule, which a test holds equal to the transport's counters.
Status execute(const Program& program, const Operands& operands, const Executor& executor,
               Deadline by);

}  // namespace stormo::comm
