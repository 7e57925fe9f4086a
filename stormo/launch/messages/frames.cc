#include <stormo/launch/messages/frames.h>

#include <utility>

namespace stormo::launch {
namespace {

constexpr std::string_view kGreeting = "stormo agent ";

}  // namespace

std::string to_bytes(const Frame& frame) {
  if (frame.event == AgentEvent::kHello) return std::string(kGreeting) + frame.payload + "\n";
  return transport::frame(transport::encode(frame));
}

Status FrameReader::feed(std::string_view bytes, const std::function<void(Frame)>& on_frame,
                         const std::function<void(std::string_view)>& on_noise) {
  while (!is_greeted_) {
    if (bytes.empty()) return {};
    const std::size_t end = bytes.find('\n');
    const std::string_view part = bytes.substr(0, end);
    if (line_.size() + part.size() > kMaxLine) {
      return Status(Code::kCorrupt, "agent: a line is too long");
    }
    line_.append(part);
    if (end == std::string_view::npos) return {};
    bytes.remove_prefix(end + 1);
    const std::string line = std::exchange(line_, {});
    is_greeted_ = line.starts_with(kGreeting);
    if (!is_greeted_) {
      on_noise(line);
    } else {
      on_frame({.payload = line.substr(kGreeting.size())});
    }
  }
  frames_.append(bytes);
  for (;;) {
    STORMO_ASSIGN_OR_RETURN(const auto body, frames_.next());
    if (!body) return {};
    STORMO_ASSIGN_OR_RETURN(Frame frame, transport::decode<Frame>("agent", *body));
    on_frame(std::move(frame));
  }
}

}  // namespace stormo::launch
