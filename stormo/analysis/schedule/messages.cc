#include <stormo/analysis/schedule/messages.h>

#include <algorithm>
#include <cstddef>
#include <limits>

#include <stormo/base/check.h>
#include <stormo/base/index.h>
#include <stormo/plan/limits.h>

namespace stormo::analysis {
namespace {

using plan::Round;
using plan::Transfer;

constexpr int kMax = std::numeric_limits<std::uint16_t>::max();
static_assert(plan::kMaxRanks <= kMax + 1 && plan::kMaxChunks <= kMax + 1);

class Order {
 public:
  Order(const std::vector<int>& host_of, Joining joining)
      : host_of_(host_of), joins_(joining == Joining::kInsideHosts), latest_(host_of.size()) {}

  std::vector<Message> of(const Round& round) {
    std::vector<Message> out;
    std::ranges::fill(latest_, kNone);
    const auto farther = [this](const Transfer& a, const Transfer& b) {
      return distance(a) < distance(b);
    };
    if (std::ranges::is_sorted(round, farther)) {
      for (const Transfer& t : round) add(t, out);
    } else {
      const std::vector<std::uint32_t>& order = by_distance(round);
      for (std::size_t i = 0; i < order.size(); ++i) {
        __builtin_prefetch(&round[order[std::min(i + kAhead, order.size() - 1)]]);
        add(round[order[i]], out);
      }
    }
    out.shrink_to_fit();
    return out;
  }

 private:
  static constexpr std::size_t kAhead = 16;  // transfers that are on their way from memory
  static constexpr auto kNone = std::numeric_limits<std::size_t>::max();

  std::size_t distance(const Transfer& t) const {
    const std::size_t around = t.to < t.from ? host_of_.size() : 0;
    return around + at(t.to) - at(t.from);
  }

  /// Positions in the round.
  const std::vector<std::uint32_t>& by_distance(const Round& round) {
    std::vector<std::size_t> begin(host_of_.size() + 1);
    for (const Transfer& t : round) ++begin[distance(t) + 1];
    for (std::size_t i = 1; i < begin.size(); ++i) begin[i] += begin[i - 1];
    order_.resize(round.size());
    for (std::size_t i = 0; i < round.size(); ++i) {
      order_[begin[distance(round[i])]++] = static_cast<std::uint32_t>(i);
    }
    return order_;
  }

  void add(const Transfer& t, std::vector<Message>& out) {
    if (joins_ && host_of_[at(t.from)] == host_of_[at(t.to)]) {
      std::size_t& latest = latest_[at(t.from)];
      if (latest != kNone && join(t, out[latest])) return;
      latest = out.size();
    }
    out.push_back({.from = static_cast<std::uint16_t>(t.from),
                   .to = static_cast<std::uint16_t>(t.to),
                   .chunk = static_cast<std::uint16_t>(t.chunk),
                   .stride = 0,
                   .count = 1,
                   .how = t.how});
  }

  /// Between two ranks of a host nothing comes in between: of one distance, a rank sends to one
  /// rank only and receives from one only.
  static bool join(const Transfer& t, Message& m) {
    const int stride = t.chunk - m.last_chunk();
    if (m.to != t.to || m.how != t.how || stride < 0 || m.count == kMax) return false;
    if (m.count > 1 && stride != m.stride) return false;
    m.stride = static_cast<std::uint16_t>(stride);
    ++m.count;
    return true;
  }

  const std::vector<int>& host_of_;
  bool joins_;
  std::vector<std::size_t> latest_;  // by sender: its latest message inside its host
  std::vector<std::uint32_t> order_;
};

}  // namespace

Messages messages_of(const plan::Schedule& s, const plan::Topology& topology, Joining joining) {
  STORMO_CHECK(topology.ranks() == s.ranks,
               "messages_of: the topology has another number of ranks");
  Messages out{.host_of = topology.host_of_ranks(), .chunks = s.chunks, .rounds = {}};
  Order order(out.host_of, joining);
  out.rounds.reserve(s.rounds.size());
  for (const Round& round : s.rounds) out.rounds.push_back(order.of(round));
  return out;
}

ChunkSizes::ChunkSizes(int chunks, std::int64_t count) : equal_(count % chunks == 0) {
  sizes_.reserve(at(chunks));
  for (int c = 0; c < chunks; ++c) sizes_.push_back(plan::chunk_extent(c, chunks, count).size());
}

std::int64_t ChunkSizes::sum(const Message& m) const {
  std::int64_t sum = 0;
  for (int i = 0; i < m.count; ++i) sum += of(m.chunk + i * m.stride);
  return sum;
}

}  // namespace stormo::analysis
