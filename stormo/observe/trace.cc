#include <stormo/observe/trace.h>

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>

namespace stormo::observe {
namespace {

static_assert(std::endian::native == std::endian::little, "the byte form is little-endian");
constexpr std::string_view kMagic = "STRTRC04";
constexpr std::size_t kEventBytes = 1 + 4 + 6 * 8;

template <class T>
void put(std::string& out, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

void put_text(std::string& out, std::string_view text) {
  put(out, static_cast<std::uint32_t>(text.size()));
  out.append(text);
}

/// Reads values from the front; the first read beyond the end makes every later one fail.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  template <class T>
  bool get(T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (rest_.size() < sizeof(T)) return false;
    std::memcpy(&value, rest_.data(), sizeof(T));
    rest_.remove_prefix(sizeof(T));
    return true;
  }
  bool get_text(std::string& text) {
    std::uint32_t size = 0;
    if (!get(size) || rest_.size() < size) return false;
    text.assign(rest_.substr(0, size));
    rest_.remove_prefix(size);
    return true;
  }
  std::size_t left() const { return rest_.size(); }

 private:
  std::string_view rest_;
};

bool get_event(Reader& in, std::size_t num_names, TraceEvent& e) {
  std::uint8_t lane = 0;
  if (!in.get(lane) || !in.get(e.name) || !in.get(e.step) || !in.get(e.bytes) ||
      !in.get(e.weights) || !in.get(e.staleness) || !in.get(e.start_ns) || !in.get(e.duration_ns)) {
    return false;
  }
  e.lane = static_cast<Lane>(lane);
  return lane < kNumLanes && e.name < num_names && e.duration_ns >= 0;
}

bool parse(Reader& in, RankTrace& trace) {
  std::uint32_t num_names = 0;
  std::uint64_t num_events = 0;
  if (!in.get(trace.rank) || !in.get_text(trace.host) || !in.get(trace.begin) ||
      !in.get(trace.end) || !in.get(trace.dropped) || !in.get(num_names) ||
      num_names > in.left() / 4) {
    return false;
  }
  trace.names.resize(num_names);
  for (std::string& name : trace.names) {
    if (!in.get_text(name)) return false;
  }
  if (!in.get(num_events) || num_events > in.left() / kEventBytes) return false;
  trace.events.resize(num_events);
  for (TraceEvent& e : trace.events) {
    if (!get_event(in, trace.names.size(), e)) return false;
  }
  return in.left() == 0;
}

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

std::string serialize(const RankTrace& trace) {
  std::string out(kMagic);
  out.reserve(out.size() + 64 + trace.events.size() * kEventBytes);
  put(out, trace.rank);
  put_text(out, trace.host);
  put(out, trace.begin);
  put(out, trace.end);
  put(out, trace.dropped);
  put(out, static_cast<std::uint32_t>(trace.names.size()));
  for (const std::string& name : trace.names) put_text(out, name);
  put(out, static_cast<std::uint64_t>(trace.events.size()));
  for (const TraceEvent& e : trace.events) {
    put(out, static_cast<std::uint8_t>(e.lane));
    put(out, e.name);
    put(out, e.step);
    put(out, e.bytes);
    put(out, e.weights);
    put(out, e.staleness);
    put(out, e.start_ns);
    put(out, e.duration_ns);
  }
  return out;
}

Result<RankTrace> parse_rank_trace(std::string_view bytes) {
  if (!bytes.starts_with(kMagic)) return Status(Code::kCorrupt, "not a trace of this version");
  Reader in(bytes.substr(kMagic.size()));
  RankTrace trace;
  if (!parse(in, trace)) return Status(Code::kCorrupt, "trace is damaged or cut short");
  return trace;
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
