// PreparedCall::fits() repeats the rules about addresses and devices: a call of a known form comes
// by it alone.
#include <stormo/comm/operation/check_request.h>

#include <fmt/format.h>

#include <cstdint>
#include <numeric>

#include <stormo/comm/operation/operation.h>

namespace stormo::comm {
namespace {

class Checker {
 public:
  Checker(const Request& request, Rank rank, int size) : r_(request), rank_(rank), size_(size) {}

  Status run() {
    for (const Buffer& b : r_.in) check_buffer(b);
    if (!in_place(r_.kind)) {
      for (const Buffer& b : r_.out) check_buffer(b);
    }
    check_reduction();
    check_peer();
    if (!r_.counts.empty()) check_counts(r_.counts);
    if (!r_.out_counts.empty()) check_counts(r_.out_counts);
    if (wrong_.empty()) check_sizes();
    if (wrong_.empty()) check_overlap();
    return wrong_.empty() ? ok_status() : invalid_argument(wrong_);
  }

 private:
  void complain(std::string_view what) {
    wrong_ += fmt::format("{}{}: {}", wrong_.empty() ? "" : "\n", to_string(r_.kind), what);
  }

  void check_buffer(const Buffer& b) {
    if (b.device.kind != Device::Kind::kCpu) {
      complain("only CPU buffers; copy to the CPU first, or use tensor::HostStaging");
    }
    if (b.count < 0 || (b.count > 0 && b.data == nullptr)) {
      complain(fmt::format("a buffer of {} elements at {}", b.count, b.data));
    }
    if (b.dtype != dtype()) {
      complain(fmt::format("buffers of {} and {} in one call; one call per dtype",
                           to_string(dtype()), to_string(b.dtype)));
    }
  }

  DType dtype() const {
    return !r_.in.empty() ? r_.in.front().dtype
                          : (!r_.out.empty() ? r_.out.front().dtype : DType::kUInt8);
  }

  void check_reduction() {
    if (!reduces(r_.kind)) return;
    const ReduceOp op = r_.reduction.op;
    const bool averages = op == ReduceOp::kAverage || op == ReduceOp::kWeightedAverage;
    const bool bits = op >= ReduceOp::kBitAnd && op <= ReduceOp::kLogicalXor;
    if (averages && !is_floating(dtype())) {
      complain(fmt::format("{} of {}; integers have sum, product, min and max", to_string(op),
                           to_string(dtype())));
    }
    if (bits && is_floating(dtype())) {
      complain(fmt::format("{} of {}; floating types have sum, average, product, min and max",
                           to_string(op), to_string(dtype())));
    }
    const bool arithmetic = op == ReduceOp::kSum || op == ReduceOp::kProduct;
    if (arithmetic && dtype() == DType::kBool) {
      complain(
          fmt::format("{} of bool; use logical or, logical and, or another type", to_string(op)));
    }
    if (op == ReduceOp::kUser && (r_.reduction.user == nullptr || !r_.reduction.user->combine ||
                                  r_.reduction.user->name.empty())) {
      complain("a user's reduction needs a name and a function");
    }
    if (op == ReduceOp::kWeightedAverage && r_.kind != OperationKind::kAllReduce) {
      complain("no weighted average; use all_reduce, or scale first");
    }
    if (averages && (r_.kind == OperationKind::kScan || r_.kind == OperationKind::kExclusiveScan)) {
      complain("no averages; sum, and divide by the number of ranks so far");
    }
    if (r_.weight < 0) complain(fmt::format("weight {} is negative", r_.weight));
  }

  void check_peer() {
    const bool message = is_message(r_.kind);
    const bool from_any = r_.kind == OperationKind::kReceive && r_.root == kAnyRank;
    if (from_any && size_ == 1) {
      complain("nobody else is in this group, from whom something could come");
    } else if (message && !from_any && (r_.root < 0 || r_.root >= size_ || r_.root == rank_)) {
      complain(fmt::format("rank {} has no peer {} in a group of {}", rank_, r_.root, size_));
    } else if (!message && (r_.root < 0 || r_.root >= size_)) {
      complain(fmt::format("root {} of {} ranks", r_.root, size_));
    }
  }

  void check_counts(std::span<const std::int64_t> counts) {
    if (counts.size() != static_cast<std::size_t>(size_)) {
      complain(fmt::format("{} counts for {} ranks", counts.size(), size_));
    }
    for (const std::int64_t n : counts) {
      if (n < 0) complain(fmt::format("a part of {} elements", n));
    }
  }

  void want(const char* which, const Buffer& b, std::int64_t count) {
    if (b.count != count) {
      complain(fmt::format("{} has {} elements, but {} ranks need {} there", which, b.count, size_,
                           count));
    }
  }

  /// The sizes of `in` and `out`, for operations that have one of each.
  void check_sizes() {
    if (is_message(r_.kind) && r_.in.size() != 1) return complain("one buffer");
    if (in_place(r_.kind)) return;
    const bool is_root = r_.root == rank_;
    const bool needs_in = r_.kind != OperationKind::kScatter || is_root;
    const bool needs_out = r_.kind != OperationKind::kGather || is_root;
    if ((needs_in && r_.in.size() != 1) || (needs_out && r_.out.size() != 1)) {
      return complain("one buffer in and one out");
    }
    const Buffer in = needs_in ? r_.in.front() : Buffer{};
    const Buffer out = needs_out ? r_.out.front() : Buffer{};
    const auto total = [](auto counts) {
      return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    };
    const bool equal = r_.counts.empty();
    const auto own = [&](const Buffer& part) {
      return equal ? part.count : r_.counts[static_cast<std::size_t>(rank_)];
    };
    const auto whole = [&](const Buffer& part) {
      return equal ? part.count * size_ : total(r_.counts);
    };
    switch (form_of(r_.kind)) {
      case BufferForm::kGathers:
        want("the input", in, own(in));
        if (needs_out) want("the output", out, whole(in));
        break;
      case BufferForm::kScatters:
        want("the output", out, own(out));
        if (needs_in) want("the input", in, whole(out));
        break;
      case BufferForm::kExchanges:
        if (equal != r_.out_counts.empty()) return complain("counts for both sides, or for none");
        want("the output", out, equal ? in.count : total(r_.out_counts));
        want("the input", in, equal ? in.count / size_ * size_ : total(r_.counts));
        break;
      case BufferForm::kInPlace: break;
    }
  }

  /// Input and output may be the same place only where the operation is defined so.
  void check_overlap() {
    if (in_place(r_.kind) || r_.in.empty() || r_.out.empty()) return;
    const Buffer& in = r_.in.front();
    const Buffer& out = r_.out.front();
    const auto* a = static_cast<const std::byte*>(in.data);
    const auto* b = static_cast<const std::byte*>(out.data);
    if (a == nullptr || b == nullptr || a + in.bytes() <= b || b + out.bytes() <= a) return;
    // the part that this rank contributes to, or takes from, the whole
    const bool gathers = form_of(r_.kind) == BufferForm::kGathers;
    const bool parts = form_of(r_.kind) != BufferForm::kExchanges;
    const Buffer& part = gathers ? in : out;
    std::int64_t before = part.count * rank_;
    if (!r_.counts.empty()) {
      before = std::accumulate(r_.counts.begin(), r_.counts.begin() + rank_, std::int64_t{0});
    }
    const std::byte* whole = gathers ? b : a;
    if (parts && (gathers ? a : b) == whole + static_cast<std::size_t>(before) * size_of(dtype())) {
      return;
    }
    complain(
        "input and output overlap; they may only if the part is this rank's place in the whole");
  }

  const Request& r_;
  const Rank rank_;
  const int size_;
  std::string wrong_;
};

}  // namespace

Status check_request(const Request& request, Rank rank, int size) {
  return Checker(request, rank, size).run();
}

}  // namespace stormo::comm
