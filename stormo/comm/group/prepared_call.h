#pragma once

#include <cstdint>

#include <stormo/comm/group/inline_payload.h>
#include <stormo/comm/operation/operation.h>
#include <stormo/comm/program/execute.h>
#include <stormo/comm/program/program.h>
#include <stormo/comm/request.h>

namespace stormo::comm {

/// Everything that a call needs except the addresses of its buffers. Loops repeat the same calls,
/// so a group caches this for the last call of each kind. A call of the same form is then not
/// checked again, and its algorithm not chosen again.
struct PreparedCall {
  Operation operation;               ///< without its sequence
  bool posted_whole = false;         ///< no algorithm: every rank posts all its data
  std::uint64_t posted_bytes = 0;    ///< then: bytes of the largest contribution
  LocalRange sources;                ///< then: the ranks whose contributions this rank needs
  const Program* program = nullptr;  ///< else
  Operands operands;

  /// This object now belongs to the form of `request`; fits() compares requests with it.
  void keep_for(const Request& request) {
    kept_ = is_plain(request) && operation.op != ReduceOp::kWeightedAverage;
    in_ = side_of(request.in);
    out_ = side_of(request.out);
  }
  /// fits() returns false until the next keep_for().
  void forget() { kept_ = false; }
  /// Whether `request` is valid and has the form for which this was made. False for requests with
  /// more than one buffer each way, with counts, a weight, a user-defined reduction or an
  /// algorithm, and for buffers that overlap.
  bool fits(const Request& request) const {
    return kept_ && is_plain(request) &&
           (!reduces(request.kind) || request.reduction.op == operation.op) &&
           request.root == operation.root && request.tag == operation.tag &&
           is_like(request.in, in_) && is_like(request.out, out_) &&
           (in_place(request.kind) || are_apart(request));
  }

 private:
  /// One side of a request.
  struct Side {
    std::size_t buffers = 0;
    std::int64_t count = 0;
    DType dtype = DType::kUInt8;
  };
  static bool is_plain(const Request& r) {
    return r.in.size() <= 1 && r.out.size() <= 1 && r.counts.empty() && r.out_counts.empty() &&
           r.algorithm.empty() && r.reduction.user == nullptr && r.weight == 1;
  }
  static Side side_of(std::span<const Buffer> buffers) {
    if (buffers.empty()) return {};
    return {1, buffers.front().count, buffers.front().dtype};
  }
  static bool is_like(std::span<const Buffer> buffers, const Side& side) {
    if (buffers.size() != side.buffers) return false;
    if (buffers.empty()) return true;
    const Buffer& b = buffers.front();
    return b.count == side.count && b.dtype == side.dtype && b.device.kind == Device::Kind::kCpu &&
           (b.data != nullptr || b.count == 0);
  }
  static bool are_apart(const Request& r) {
    if (r.in.empty() || r.out.empty()) return true;
    const auto in = reinterpret_cast<std::uintptr_t>(r.in.front().data);
    const auto out = reinterpret_cast<std::uintptr_t>(r.out.front().data);
    return in + r.in.front().bytes() <= out || out + r.out.front().bytes() <= in;
  }

  bool kept_ = false;
  Side in_;
  Side out_;
};

}  // namespace stormo::comm
