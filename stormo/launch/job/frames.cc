#include <stormo/launch/job/frames.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace stormo::launch {
namespace {

using nlohmann::json;

/// The object of one line; null when it is none.
json parse_object(std::string_view line) {
  json in = json::parse(line, nullptr, /*allow_exceptions=*/false);
  return in.is_object() ? in : json();
}

}  // namespace

std::string encode(const Frame& frame) {
  return json{{"event", frame.event},
              {"rank", frame.rank},
              {"value", frame.value},
              {"bytes", frame.payload.size()}}
             .dump() +
         "\n" + frame.payload;
}

Status FrameReader::take_header(std::string_view line,
                                const std::function<void(std::string_view)>& on_noise) {
  const json in = parse_object(line);
  const bool frame = in.is_object() && in.contains("event") && in["event"].is_string() &&
                     in.contains("rank") && in["rank"].is_number_integer() &&
                     in.contains("value") && in["value"].is_number_integer() &&
                     in.contains("bytes") && in["bytes"].is_number_unsigned();
  if (!frame) {
    if (started_) return Status(Code::kCorrupt, "agent: a line that is no frame");
    on_noise(line);
    return {};
  }
  started_ = true;
  const auto bytes = in["bytes"].get<std::uint64_t>();
  if (bytes > kMaxPayload) return Status(Code::kCorrupt, "agent: a frame is too long");
  frame_ = {in["event"].get<std::string>(), in["rank"].get<Rank>(), in["value"].get<int>(), {}};
  payload_left_ = bytes;
  in_payload_ = true;
  return {};
}

Status FrameReader::feed(std::string_view bytes, const std::function<void(Frame)>& on_frame,
                         const std::function<void(std::string_view)>& on_noise) {
  while (true) {
    if (in_payload_) {
      const std::size_t n = std::min(payload_left_, bytes.size());
      frame_.payload.append(bytes.substr(0, n));
      bytes.remove_prefix(n);
      payload_left_ -= n;
      if (payload_left_ > 0) return {};
      in_payload_ = false;
      on_frame(std::exchange(frame_, {}));
      continue;
    }
    if (bytes.empty()) return {};
    const std::size_t end = bytes.find('\n');
    const std::string_view part = bytes.substr(0, end);
    if (buffer_.size() + part.size() > kMaxHeader)
      return Status(Code::kCorrupt, "agent: a line is too long");
    buffer_.append(part);
    if (end == std::string_view::npos) return {};
    bytes.remove_prefix(end + 1);
    const std::string line = std::exchange(buffer_, {});
    STORMO_RETURN_IF_ERROR(take_header(line, on_noise));
  }
}

std::string encode_signal(int signal) { return json{{"signal", signal}}.dump() + "\n"; }

int decode_signal(std::string_view line) {
  const json in = parse_object(line);
  if (!in.is_object() || !in.contains("signal") || !in["signal"].is_number_integer()) return 0;
  const int signal = in["signal"].get<int>();
  return signal > 0 && signal < 65 ? signal : 0;
}

}  // namespace stormo::launch
