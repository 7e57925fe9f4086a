#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <stormo/comm/program/execute.h>
#include <stormo/comm/request.h>
#include <stormo/transport/shm/host_group.h>

namespace stormo::comm {

/// Local ranks first to last-1.
struct LocalRange {
  int first = 0;
  int last = 0;
  bool operator==(const LocalRange&) const = default;
};

/// Operations among the ranks of one host whose data fit on the boards: every rank posts its data,
/// waits for the ranks whose data it needs, and reads them from their boards. No rank accesses
/// buffers of other ranks, so no second barrier is needed.
class InlinePayload {
 public:
  explicit InlinePayload(const transport::HostGroup& host) : host_(host) {}

  /// Bytes of the largest contribution that a rank writes on its board.
  std::uint64_t contribution(const Request& request) const;
  /// Whether the data of the request fit on the boards; equal on all ranks that call the same
  /// operation.
  bool fits(const Request& request) const;
  /// The ranks whose contributions this rank needs: the root, all, or none.
  LocalRange sources(const Request& request) const;
  /// Before the barrier: writes this rank's contribution to its board. `bytes`: contribution().
  void post(const Request& request, std::uint64_t bytes);
  /// After the barrier: computes this rank's result. `from`: sources(). Uses kernel, how,
  /// user and scales of `operands`.
  void finish(const Request& request, LocalRange from, const Operands& operands);

 private:
  const std::byte* payload(int rank) const;
  void reduce_ranks(const Operands& operands, LocalRange from, std::size_t offset,
                    const std::byte* own, const Buffer& out);
  void finish_reduction(const Request& request, LocalRange from, const Operands& operands);

  const transport::HostGroup& host_;
  std::uint64_t posted_bytes_ = 0;  // from post() to finish()
  std::vector<Operand> sources_;
};

}  // namespace stormo::comm
