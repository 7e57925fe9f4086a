#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <stormo/comm/group/inline_payload.h>
#include <stormo/comm/operation/operation.h>
#include <stormo/comm/program/execute.h>
#include <stormo/comm/program/program.h>
#include <stormo/comm/request.h>

namespace stormo::comm {

/// Everything that a call needs except the addresses of its buffers and its weights; of a message
/// `operation` and `operands.tag`. Loops repeat the same calls, so a group caches this for the last
/// call of each kind. A call of the same form is then not
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
    kept_ = is_plain(request);
    in_.keep(request.in);
    out_.keep(request.out);
  }
  /// fits() returns false until the next keep_for().
  void forget() { kept_ = false; }
  /// Whether `request` is valid and has the form for which this was made. False for requests with
  /// counts, a user-defined reduction or an algorithm, and for buffers that overlap.
  bool fits(const Request& request) const {
    return kept_ && is_plain(request) &&
           (!reduces(request.kind) || request.reduction.op == operation.op) &&
           request.root == operation.root && request.tag == operation.tag &&
           in_.is_like(request.in) && out_.is_like(request.out) &&
           (in_place(request.kind) || are_apart(request));
  }

 private:
  /// One side of a request.
  struct Side {
    std::vector<std::int64_t> counts;  // of each buffer
    DType dtype = DType::kUInt8;       // of all

    void keep(std::span<const Buffer> buffers) {
      counts.clear();
      for (const Buffer& b : buffers) counts.push_back(b.count);
      if (!buffers.empty()) dtype = buffers.front().dtype;
    }
    bool is_like(std::span<const Buffer> buffers) const {
      if (buffers.size() != counts.size()) return false;
      for (std::size_t i = 0; i < counts.size(); ++i) {
        const Buffer& b = buffers[i];
        const bool fits = b.count == counts[i] && b.dtype == dtype &&
                          b.device.kind == Device::Kind::kCpu &&
                          (b.data != nullptr || b.count == 0);
        if (!fits) return false;
      }
      return true;
    }
  };
  static bool is_plain(const Request& r) {
    return r.counts.empty() && r.out_counts.empty() && r.algorithm.empty() &&
           r.reduction.user == nullptr && r.weight >= 0;
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
