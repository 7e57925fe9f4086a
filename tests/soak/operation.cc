#include "tests/soak/operation.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include <stormo/comm/operation/operation.h>
#include <stormo/comm/selection/selection.h>
#include <stormo/schedule/builders.h>

namespace stormo::soak {
namespace {

using comm::OperationKind;
using comm::ReduceOp;

constexpr std::array kKinds = {
    OperationKind::kAllReduce,     OperationKind::kReduce,    OperationKind::kBroadcast,
    OperationKind::kScan,          OperationKind::kAllGather, OperationKind::kExclusiveScan,
    OperationKind::kReduceScatter, OperationKind::kGather,    OperationKind::kScatter,
    OperationKind::kAllToAll,      OperationKind::kBarrier,   OperationKind::kSend};
constexpr std::array<std::int64_t, 16> kCounts = {
    0, 1, 2, 3, 7, 13, 64, 127, 509, 1009, 4096, 5003, 9001, 65537, 100003, 262147};

template <class T, std::size_t N>
T any_of(const std::array<T, N>& list, Rng& rng) {
  return list[rng.below(N)];
}

std::vector<ReduceOp> reductions_of(DType dtype, OperationKind kind) {
  std::vector<ReduceOp> ops = {ReduceOp::kMin, ReduceOp::kMax};
  const bool scans = kind == OperationKind::kScan || kind == OperationKind::kExclusiveScan;
  if (dtype != DType::kBool) ops.insert(ops.end(), {ReduceOp::kSum, ReduceOp::kProduct});
  if (!is_floating(dtype)) {
    ops.insert(ops.end(), {ReduceOp::kBitAnd, ReduceOp::kBitOr, ReduceOp::kBitXor});
  } else if (!scans) {
    ops.push_back(ReduceOp::kAverage);
    if (kind == OperationKind::kAllReduce) ops.push_back(ReduceOp::kWeightedAverage);
  }
  return ops;
}

std::vector<std::vector<std::int64_t>> equal_lengths(std::size_t ranks, std::int64_t count) {
  return {ranks, std::vector<std::int64_t>(ranks, count)};
}

bool has_parts(OperationKind kind) {
  return kind == OperationKind::kAllGather || kind == OperationKind::kGather ||
         kind == OperationKind::kScatter || kind == OperationKind::kReduceScatter ||
         kind == OperationKind::kAllToAll;
}

bool has_algorithms(OperationKind kind) {
  return kind != OperationKind::kSend && kind != OperationKind::kBarrier;
}

void choose_algorithm(Operation& o, Rng& rng, const std::vector<int>& ranks_per_host) {
  const auto all = schedule::builders();
  const schedule::Builder& b = all[rng.below(all.size())];
  const plan::GoalKind goal = comm::goal_of(o.kind);
  const comm::Choice choice{&b, b.takes.pieces ? 1 + static_cast<int>(rng.below(3)) : 1};
  if (b.goal != goal || !has_algorithms(o.kind)) return;
  if (!comm::check_choice(choice, goal, ranks_per_host).ok()) return;
  if (b.forwards && !o.equal_parts) return;
  o.algorithm = std::string(b.name);
  o.pieces = choice.pieces;
}

double term(const Operation& o, Rank rank, std::int64_t i) {
  std::uint64_t h = o.seed + static_cast<std::uint64_t>(rank) * 0x9E3779B97F4A7C15ull +
                    static_cast<std::uint64_t>(i);
  h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9ull;
  h = (h ^ (h >> 27)) * 0x94D049BB133111EBull;
  h ^= h >> 31;
  if (o.dtype == DType::kBool) return static_cast<double>(h % 2);
  if (o.op == ReduceOp::kProduct && comm::reduces(o.kind)) return static_cast<double>(1 + h % 2);
  return static_cast<double>(h % 4);
}

std::vector<double> terms(const Operation& o, Rank rank, std::int64_t count,
                          std::int64_t from = 0) {
  std::vector<double> v(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) v[static_cast<std::size_t>(i)] = term(o, rank, from + i);
  return v;
}

double combine(const Operation& o, double a, double b) {
  const auto x = static_cast<int>(a);
  const auto y = static_cast<int>(b);
  switch (o.op) {
    case ReduceOp::kProduct: return a * b;
    case ReduceOp::kMin: return std::min(a, b);
    case ReduceOp::kMax: return std::max(a, b);
    case ReduceOp::kBitAnd: return x & y;
    case ReduceOp::kBitOr: return x | y;
    case ReduceOp::kBitXor: return x ^ y;
    default: return a + b;
  }
}

/// Of ranks 0 to ranks-1, elements from..from+count.
std::vector<double> reduced(const Operation& o, int ranks, std::int64_t count,
                            std::int64_t from = 0) {
  double total = 0;
  for (Rank r = 0; r < o.ranks; ++r) total += weight(o, r);
  std::vector<double> v(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    double& out = v[static_cast<std::size_t>(i)];
    for (Rank r = 0; r < ranks; ++r) {
      const double scale = o.op == ReduceOp::kAverage ? 1.0 / o.ranks
                           : o.op == ReduceOp::kWeightedAverage
                               ? (total > 0 ? weight(o, r) / total : 0)
                               : 1;
      const double x = scale * term(o, r, from + i);
      out = r == 0 ? x : combine(o, out, x);
    }
  }
  return v;
}

std::int64_t part(const Operation& o, Rank r) { return o.lengths[static_cast<std::size_t>(r)][0]; }
std::int64_t before(const Operation& o, Rank r) {
  std::int64_t sum = 0;
  for (Rank p = 0; p < r; ++p) sum += part(o, p);
  return sum;
}

/// The block that rank `from` has for rank `to` in an all_to_all.
std::vector<double> block(const Operation& o, Rank from, Rank to) {
  const std::int64_t n = o.lengths[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)];
  return terms(o, from * 64 + to, n);
}

void append(std::vector<double>& to, const std::vector<double>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

}  // namespace

std::string Operation::text() const {
  return std::string(comm::to_string(kind)) + " (" + std::string(comm::to_string(op)) + ") of " +
         std::to_string(count) + (equal_parts ? " " : " in unequal parts, ") +
         std::string(to_string(dtype)) + " in " + std::to_string(num_buffers) + " buffers, root " +
         std::to_string(root) + ", " + std::to_string(ranks) + " ranks" +
         (algorithm.empty() ? ""
                            : ", by " + algorithm + " in " + std::to_string(pieces) + " pieces") +
         (asynchronous ? ", asynchronous" : "");
}

Operation random_operation(Rng& rng, const std::vector<int>& ranks_per_host,
                           std::int64_t max_count) {
  Operation o;
  o.ranks = std::accumulate(ranks_per_host.begin(), ranks_per_host.end(), 0);
  const auto n = static_cast<std::size_t>(o.ranks);
  o.kind = any_of(kKinds, rng);
  if (o.kind == OperationKind::kSend && o.ranks == 1) o.kind = OperationKind::kBarrier;
  o.dtype = any_of(kDTypes, rng);
  const auto ops = reductions_of(o.dtype, o.kind);
  o.op = ops[rng.below(ops.size())];
  o.root = static_cast<Rank>(rng.below(n));
  o.peer = static_cast<Rank>((static_cast<std::size_t>(o.root) + 1 + rng.below(n)) % n);
  if (o.peer == o.root) o.peer = (o.root + 1) % o.ranks;
  o.count = std::min(any_of(kCounts, rng), has_parts(o.kind) ? max_count / o.ranks : max_count);
  o.equal_parts = rng.below(2) == 0;
  o.lengths = equal_lengths(n, o.count);
  for (auto& row : o.lengths) {
    if (o.equal_parts) break;
    for (auto& length : row) {
      length = static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(o.count) + 1));
    }
  }
  const bool many = comm::in_place(o.kind) && o.kind != OperationKind::kSend &&
                    o.kind != OperationKind::kScan && o.kind != OperationKind::kExclusiveScan;
  if (many && rng.below(3) == 0) o.num_buffers = 1 + static_cast<int>(rng.below(6));
  if (rng.below(3) == 0) choose_algorithm(o, rng, ranks_per_host);
  o.asynchronous = rng.below(3) == 0;
  o.seed = rng.next_u64();
  return o;
}

std::optional<Operation> greatest_operation(const schedule::Builder& builder,
                                            const std::vector<int>& ranks_per_host,
                                            std::int64_t max_count) {
  const auto kind = std::find_if(kKinds.begin(), kKinds.end(), [&](OperationKind k) {
    return has_algorithms(k) && comm::goal_of(k) == builder.goal;
  });
  const comm::Choice choice{&builder, 1};
  if (kind == kKinds.end() || !comm::check_choice(choice, builder.goal, ranks_per_host).ok()) {
    return std::nullopt;
  }
  Operation o;
  o.kind = *kind;
  o.dtype = DType::kFloat64;
  o.ranks = std::accumulate(ranks_per_host.begin(), ranks_per_host.end(), 0);
  o.count = has_parts(o.kind) ? max_count / o.ranks : max_count;
  o.lengths = equal_lengths(static_cast<std::size_t>(o.ranks), o.count);
  o.algorithm = std::string(builder.name);
  return o;
}

double weight(const Operation& o, Rank me) {
  if (o.op != ReduceOp::kWeightedAverage) return 1;
  return static_cast<double>((o.seed >> me) % 3);
}

std::vector<double> input(const Operation& o, Rank me) {
  switch (o.kind) {
    case OperationKind::kBarrier: return {};
    case OperationKind::kAllGather:
    case OperationKind::kGather: return terms(o, me, part(o, me));
    case OperationKind::kReduceScatter: return terms(o, me, before(o, o.ranks));
    case OperationKind::kScatter:
      return me == o.root ? terms(o, me, before(o, o.ranks)) : std::vector<double>();
    case OperationKind::kAllToAll: {
      std::vector<double> all;
      for (Rank r = 0; r < o.ranks; ++r) append(all, block(o, me, r));
      return all;
    }
    default: return terms(o, me, o.count);
  }
}

std::vector<double> output(const Operation& o, Rank me) {
  std::vector<double> all;
  switch (o.kind) {
    case OperationKind::kAllReduce: return reduced(o, o.ranks, o.count);
    case OperationKind::kReduce:
      return me == o.root ? reduced(o, o.ranks, o.count) : std::vector<double>();
    case OperationKind::kBroadcast: return terms(o, o.root, o.count);
    case OperationKind::kScan: return reduced(o, me + 1, o.count);
    case OperationKind::kExclusiveScan:
      return me == 0 ? terms(o, 0, o.count) : reduced(o, me, o.count);
    case OperationKind::kAllGather:
    case OperationKind::kGather:
      if (o.kind == OperationKind::kGather && me != o.root) return {};
      for (Rank r = 0; r < o.ranks; ++r) append(all, terms(o, r, part(o, r)));
      return all;
    case OperationKind::kScatter: return terms(o, o.root, part(o, me), before(o, me));
    case OperationKind::kReduceScatter: return reduced(o, o.ranks, part(o, me), before(o, me));
    case OperationKind::kAllToAll:
      for (Rank r = 0; r < o.ranks; ++r) append(all, block(o, r, me));
      return all;
    case OperationKind::kSend: return terms(o, o.root, o.count);
    default: return all;
  }
}

std::vector<std::byte> encode(DType dtype, const std::vector<double>& values) {
  std::vector<std::byte> out(values.size() * size_of(dtype));
  std::byte* at = out.data();
  const auto put = [&](auto element) {
    std::memcpy(at, &element, sizeof element);
    at += sizeof element;
  };
  for (const double v : values) {
    const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(v));
    switch (dtype) {
      case DType::kFloat32: put(static_cast<float>(v)); break;
      case DType::kFloat64: put(v); break;
      case DType::kBFloat16: put(static_cast<std::uint16_t>(bits >> 16)); break;
      case DType::kFloat16:
        put(static_cast<std::uint16_t>(
            v == 0 ? 0 : (((bits >> 23) - 112) << 10) | (bits >> 13 & 0x3FF)));
        break;
      case DType::kInt8:
      case DType::kUInt8:
      case DType::kBool: put(static_cast<std::uint8_t>(static_cast<int>(v))); break;
      case DType::kInt16: put(static_cast<std::int16_t>(v)); break;
      case DType::kInt32: put(static_cast<std::int32_t>(v)); break;
      case DType::kInt64: put(static_cast<std::int64_t>(v)); break;
    }
  }
  return out;
}

std::vector<double> decode(DType dtype, const std::byte* elements, std::size_t count) {
  std::vector<double> out(count);
  const auto get = [&]<class T>(std::size_t i, T element) {
    std::memcpy(&element, elements + i * sizeof element, sizeof element);
    return element;
  };
  for (std::size_t i = 0; i < count; ++i) {
    switch (dtype) {
      case DType::kFloat32: out[i] = get(i, 0.0f); break;
      case DType::kFloat64: out[i] = get(i, 0.0); break;
      case DType::kBFloat16: {
        const std::uint32_t h = get(i, std::uint16_t{0});
        out[i] = std::bit_cast<float>(h << 16);
        break;
      }
      case DType::kFloat16: {
        const std::uint32_t h = get(i, std::uint16_t{0});
        const int exponent = static_cast<int>(h >> 10 & 31);
        const double fraction = static_cast<double>(h & 0x3FF) / 1024;
        out[i] = std::ldexp(exponent == 0 ? fraction : 1 + fraction, std::max(exponent, 1) - 15);
        break;
      }
      case DType::kInt8:
      case DType::kUInt8:
      case DType::kBool: out[i] = get(i, std::uint8_t{0}); break;
      case DType::kInt16: out[i] = get(i, std::int16_t{0}); break;
      case DType::kInt32: out[i] = get(i, std::int32_t{0}); break;
      case DType::kInt64: out[i] = static_cast<double>(get(i, std::int64_t{0})); break;
    }
  }
  return out;
}

bool agree(const Operation& o, const std::vector<double>& got, const std::vector<double>& want) {
  if (got.size() != want.size()) return false;
  const bool averages =
      comm::reduces(o.kind) && (o.op == ReduceOp::kAverage || o.op == ReduceOp::kWeightedAverage);
  const double precision = !averages                     ? 0
                           : o.dtype == DType::kBFloat16 ? 1.0 / 64
                           : o.dtype == DType::kFloat16  ? 1.0 / 512
                                                         : 1e-6;
  // products of bytes wrap around
  const bool wraps = o.dtype == DType::kInt8 || o.dtype == DType::kUInt8;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double w = wraps ? std::fmod(want[i], 256) : want[i];
    if (std::abs(got[i] - w) > precision * std::max(1.0, std::abs(w))) return false;
  }
  return true;
}

}  // namespace stormo::soak
