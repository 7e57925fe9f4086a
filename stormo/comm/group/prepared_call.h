#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <stormo/comm/group/inline_payload.h>
#include <stormo/comm/operation/operation.h>
#include <stormo/comm/program/execute.h>
#include <stormo/comm/program/program.h>
#include <stormo/comm/request.h>

namespace stormo::comm {

/// Everything that a call needs except the addresses of its buffers and its weights; of a message
/// `operation` and `form`. Loops repeat the same calls, so a group caches this for the last call of
/// each kind. A call of the same form is then not checked again, and its algorithm not chosen
/// again.
struct PreparedCall {
  Operation operation;               ///< its sequence is that of the last call
  Tag form = 0;                      ///< fingerprint of the operation without its sequence
  bool posted_whole = false;         ///< no algorithm: every rank posts all its data
  std::uint64_t posted_bytes = 0;    ///< then: bytes of the largest contribution
  LocalRange sources;                ///< then: the ranks whose contributions this rank needs
  const Program* program = nullptr;  ///< else
  bool can_be_cut = false;           ///< one large buffer, of which pieces add up as the whole does
  Operands operands;

  /// This object now belongs to the form of `request`; fits() compares requests with it.
  void keep_for(const Request& request);
  /// fits() returns false until the next keep_for().
  void forget() { kept_ = false; }
  /// Whether `request` is valid and has the form for which this was made. False for requests with
  /// counts, a user-defined reduction or an algorithm, and for buffers that overlap.
  bool fits(const Request& request) const;

 private:
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
  std::size_t num_in_ = 0;
  std::vector<std::int64_t> counts_;  // of the buffers in, then of those out, unless in place
  DType dtype_ = DType::kUInt8;       // of all
};

}  // namespace stormo::comm
