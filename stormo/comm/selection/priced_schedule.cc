#include <stormo/comm/selection/priced_schedule.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <utility>

#include <stormo/analysis/schedule/simulate.h>

namespace stormo::comm {
namespace {

using analysis::Message;
using analysis::Traffic;

/// From this many messages on, a play takes milliseconds.
constexpr std::size_t kLarge = std::size_t{1} << 18;

}  // namespace

PricedSchedule::PricedSchedule(const plan::Schedule& s, plan::Topology topology)
    : topology_(std::move(topology)),
      messages_(messages_of(s, topology_, analysis::Joining::kInsideHosts)) {
  std::size_t messages = 0;
  for (const std::vector<Message>& round : messages_.rounds) messages += round.size();
  large_ = messages >= kLarge;
}

std::vector<Traffic> PricedSchedule::traffic(std::int64_t elements, std::int64_t element_bytes) {
  const std::int64_t chunks = messages_.chunks;
  const bool equal = elements % chunks == 0;
  const std::int64_t times = (equal ? elements / chunks : 1) * element_bytes;
  std::vector<Traffic> out = elements_sent(equal ? chunks : elements);
  for (Traffic& t : out) {
    t.between_hosts *= times;
    t.in_host *= times;
  }
  return out;
}

const std::vector<Traffic>& PricedSchedule::elements_sent(std::int64_t elements) {
  const auto [known, is_new] = sent_.try_emplace(elements);
  std::vector<Traffic>& sent = known->second;
  if (!is_new) return sent;
  const std::vector<int>& host_of = messages_.host_of;
  sent.resize(host_of.size());
  const analysis::ChunkSizes sizes(messages_.chunks, elements);
  for (const std::vector<Message>& round : messages_.rounds) {
    for (const Message& m : round) {
      Traffic& t = sent[m.from];
      (host_of[m.from] == host_of[m.to] ? t.in_host : t.between_hosts) += sizes.of(m);
    }
  }
  return sent;
}

Duration PricedSchedule::time(std::int64_t bytes) {
  const std::int64_t chunk_bytes = bytes / messages_.chunks;
  const bool equal = bytes % messages_.chunks == 0;
  return large_ && equal && chunk_bytes > 1 ? on_the_line(chunk_bytes) : played(bytes);
}

Duration PricedSchedule::played(std::int64_t bytes) {
  const auto [known, is_new] = times_.try_emplace(bytes);
  if (is_new) {
    known->second = duration_of(messages_, topology_, bytes);
    ++plays_;
  }
  return known->second;
}

/// The time is a convex function of the size of a chunk: maxima and sums of terms that are linear
/// in it. Where the middle of an interval lies on the line through its ends, all of it does. The
/// ends are powers of two, so that sizes share them.
Duration PricedSchedule::on_the_line(std::int64_t chunk_bytes) {
  const auto low =
      static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(chunk_bytes)));
  const std::int64_t chunks = messages_.chunks;
  const Duration least = played(low * chunks), most = played(2 * low * chunks);
  const Duration middle = played((low + low / 2) * chunks);
  const Duration rounded(2);  // what rounding to nanoseconds bends the line by
  if (least + most - 2 * middle > rounded) return played(chunk_bytes * chunks);
  const double part = static_cast<double>(chunk_bytes - low) / static_cast<double>(low);
  return least + Duration(std::llround(part * static_cast<double>((most - least).count())));
}

}  // namespace stormo::comm
