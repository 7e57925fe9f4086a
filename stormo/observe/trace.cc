#include <stormo/observe/trace.h>

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include <stormo/transport/call/fields.h>

namespace stormo::observe {

void fields(auto& visit, transport::Like<TraceEvent> auto& e) {
  visit("event", transport::within(e.lane, Lane::kCompute, Lane::kData), e.name, e.step, e.bytes,
        e.weights, e.staleness, e.start_ns, e.duration_ns);
  visit.require(e.duration_ns >= 0, "an event that ends before it begins");
}

void fields(auto& visit, transport::Like<ClockReading> auto& c) {
  visit("clock", c.at_ns, c.offset_ns);
}

void fields(auto& visit, transport::Like<RankTrace> auto& t) {
  visit("trace", t.rank, t.host, t.begin, t.end, t.dropped, t.names, t.events);
  visit.require(std::ranges::all_of(t.events, [&](auto& e) { return e.name < t.names.size(); }),
                "an event without a name");
}

namespace {

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string microseconds(std::int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

/// Wraps instead of overflowing: parsed traces may hold any number.
std::int64_t sum(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

/// The start on the clock of rank 0's host.
std::int64_t common_ns(const RankTrace& t, const TraceEvent& e) {
  const auto apart = [](std::int64_t from, std::int64_t to) {
    return static_cast<double>(to) - static_cast<double>(from);
  };
  const double passed = apart(t.begin.at_ns, e.start_ns), all = apart(t.begin.at_ns, t.end.at_ns);
  const double share = all > 0 ? std::clamp(passed / all, 0.0, 1.0) : 0;
  // rank 0's clock at the beginning, and what has passed on it since then
  const double drift = share * apart(t.begin.offset_ns, t.end.offset_ns);
  const double most = 9e18;
  return sum(sum(e.start_ns, t.begin.offset_ns),
             static_cast<std::int64_t>(std::clamp(drift, -most, most)));
}

class ChromeWriter {
 public:
  ChromeWriter(std::ostream& out, std::int64_t origin_ns) : out_(out), origin_ns_(origin_ns) {
    out_ << "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  }

  void metadata(Rank rank, int lane, std::string_view kind, const std::string& args) {
    item(fmt::format(R"({{"ph":"M","pid":{},"tid":{},"name":"{}","args":{{{}}}}})", rank, lane,
                     kind, args));
  }

  void rank(const RankTrace& t) {
    const std::string host = t.host.empty() ? "" : " on " + t.host;
    metadata(t.rank, 0, "process_name",
             fmt::format(R"("name":{})", quoted(fmt::format("rank {}{}", t.rank, host))));
    metadata(t.rank, 0, "process_sort_index", fmt::format(R"("sort_index":{})", t.rank));
    for (int lane = 0; lane < kNumLanes; ++lane) {
      metadata(t.rank, lane, "thread_name",
               fmt::format(R"("name":"{}")", to_string(static_cast<Lane>(lane))));
      metadata(t.rank, lane, "thread_sort_index", fmt::format(R"("sort_index":{})", lane));
    }
    std::vector<std::string> names;
    names.reserve(t.names.size());
    for (const std::string& name : t.names) names.push_back(quoted(name));
    for (const TraceEvent& e : t.events) event(t, e, names[e.name]);
  }

  void finish(std::uint64_t dropped) {
    out_ << fmt::format("\n],\"otherData\":{{\"dropped_events\":{}}}}}\n", dropped);
  }

 private:
  void event(const RankTrace& t, const TraceEvent& e, const std::string& name) {
    item(fmt::format(
        R"({{"ph":"X","pid":{},"tid":{},"cat":"{}","name":{},"ts":{},"dur":{},"args":{{"step":{},"bytes":{}{}{}}}}})",
        t.rank, static_cast<int>(e.lane), to_string(e.lane), name,
        microseconds(std::max<std::int64_t>(0, common_ns(t, e) - origin_ns_)),
        microseconds(e.duration_ns), e.step, e.bytes,
        e.weights < 0 ? "" : fmt::format(",\"weights\":{}", e.weights),
        e.staleness < 0 ? "" : fmt::format(",\"staleness\":{}", e.staleness)));
  }

  void item(const std::string& text) {
    out_ << (first_ ? "\n" : ",\n") << text;
    first_ = false;
  }

  std::ostream& out_;
  std::int64_t origin_ns_;
  bool first_ = true;
};

}  // namespace

std::string serialize(const RankTrace& trace) { return transport::encode(trace); }

Result<RankTrace> parse_rank_trace(std::string_view bytes) {
  return transport::decode<RankTrace>("trace", bytes);
}

void write_chrome_trace(std::ostream& out, std::span<const RankTrace> traces) {
  std::int64_t origin = std::numeric_limits<std::int64_t>::max();
  std::uint64_t dropped = 0;
  for (const RankTrace& t : traces) {
    dropped += t.dropped;
    for (const TraceEvent& e : t.events) origin = std::min(origin, common_ns(t, e));
  }
  ChromeWriter writer(out, origin);
  for (const RankTrace& t : traces) writer.rank(t);
  writer.finish(dropped);
}

}  // namespace stormo::observe
