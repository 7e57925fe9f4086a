#include <stormo/analysis/schedule/cost.h>

#include <algorithm>
#include <vector>

#include <stormo/base/check.h>

namespace stormo::analysis {
namespace {

using Bytes = std::vector<std::int64_t>;

std::int64_t& bytes_at(Bytes& bytes, int index) { return bytes[static_cast<std::size_t>(index)]; }

/// Calls f(transfer, bytes) for every transfer.
template <class F>
void for_each_transfer(const plan::Schedule& s, std::int64_t count, std::int64_t element_bytes,
                       F&& f) {
  for (const plan::Round& round : s.rounds) {
    for (const plan::Transfer& t : round) {
      STORMO_CHECK(t.from >= 0 && t.from < s.ranks && t.to >= 0 && t.to < s.ranks && t.chunk >= 0 &&
                       t.chunk < s.chunks,
                   "cost: transfer out of range");
      f(t, plan::chunk_extent(t.chunk, s.chunks, count).size() * element_bytes);
    }
  }
}

}  // namespace

Cost cost(const plan::Schedule& s, std::int64_t count, std::int64_t element_bytes) {
  const auto ranks = static_cast<std::size_t>(s.ranks);
  Bytes sent(ranks), received(ranks), reduced(ranks), both(ranks);
  Cost out;
  out.rounds = static_cast<int>(s.rounds.size());
  for_each_transfer(s, count, element_bytes, [&](const plan::Transfer& t, std::int64_t bytes) {
    ++out.messages;
    out.total_bytes += bytes;
    bytes_at(sent, t.from) += bytes;
    bytes_at(received, t.to) += bytes;
    bytes_at(both, t.from) += bytes;
    bytes_at(both, t.to) += bytes;
    if (t.how == plan::ReceiveOp::kReduce) bytes_at(reduced, t.to) += bytes;
  });
  out.max_bytes_sent = std::ranges::max(sent);
  out.max_bytes_received = std::ranges::max(received);
  out.max_bytes_reduced = std::ranges::max(reduced);
  out.busiest = static_cast<Rank>(std::ranges::max_element(both) - both.begin());
  return out;
}

InterHostCost inter_host_cost(const plan::Schedule& s, const plan::Topology& topology,
                              std::int64_t count, std::int64_t element_bytes) {
  STORMO_CHECK(topology.ranks() == s.ranks, "cost: the topology has another number of ranks");
  const std::vector<int> host = topology.host_of_ranks();
  const auto hosts = static_cast<std::size_t>(topology.hosts());
  Bytes sent(hosts), received(hosts), rank_sent(static_cast<std::size_t>(s.ranks));
  InterHostCost out;
  for_each_transfer(s, count, element_bytes, [&](const plan::Transfer& t, std::int64_t bytes) {
    const int from = host[static_cast<std::size_t>(t.from)];
    const int to = host[static_cast<std::size_t>(t.to)];
    if (from == to) return;
    ++out.messages;
    out.total_bytes += bytes;
    bytes_at(sent, from) += bytes;
    bytes_at(received, to) += bytes;
    bytes_at(rank_sent, t.from) += bytes;
  });
  out.max_host_bytes_sent = std::ranges::max(sent);
  out.max_host_bytes_received = std::ranges::max(received);
  out.max_rank_bytes_sent = std::ranges::max(rank_sent);
  return out;
}

}  // namespace stormo::analysis
