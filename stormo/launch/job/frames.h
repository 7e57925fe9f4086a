#pragma once

#include <functional>
#include <string>
#include <string_view>

#include <stormo/base/ids.h>
#include <stormo/base/status.h>

namespace stormo::launch {

/// A message of an agent to the launcher: a line of JSON, followed by the bytes of `payload`.
///   hello    payload: version        started  value: pid          output      value: 1 or 2
///   closed   value: 1 or 2           exited   value: exit status  signalled   value: signal
///   message  payload: text           refused  payload: why nothing was started
/// The payload of signalled is the cause, if the host knows it.
struct Frame {
  std::string event;
  Rank rank = 0;
  int value = 0;
  std::string payload;
  bool operator==(const Frame&) const = default;
};

std::string encode(const Frame& frame);

/// Reads frames from a byte stream that arrives in arbitrary parts. Lines before the first frame
/// are output of a login shell and passed to `on_noise`. Lengths are checked before data are
/// stored.
class FrameReader {
 public:
  static constexpr std::size_t kMaxHeader = 4096;
  static constexpr std::size_t kMaxPayload = 1u << 20;

  Status feed(std::string_view bytes, const std::function<void(Frame)>& on_frame,
              const std::function<void(std::string_view)>& on_noise);

 private:
  Status take_header(std::string_view line, const std::function<void(std::string_view)>& on_noise);

  std::string buffer_;
  Frame frame_;
  std::size_t payload_left_ = 0;
  bool in_payload_ = false;
  bool started_ = false;
};

/// Launcher to agent: {"signal": 15}; 0 when `line` is not one.
std::string encode_signal(int signal);
int decode_signal(std::string_view line);

}  // namespace stormo::launch
