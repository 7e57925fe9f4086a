#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/launch/environment.h>
#include <stormo/transport/call/fields.h>
#include <stormo/transport/call/frame.h>

namespace stormo::launch {

/// Values are wire format: append only.
enum class AgentEvent : std::uint8_t {
  kHello = 1,       ///< payload: version
  kStarted = 2,     ///< value: pid
  kOutput = 3,      ///< value: 1 or 2
  kClosed = 4,      ///< value: 1 or 2
  kExited = 5,      ///< value: exit status
  kSignalled = 6,   ///< value: signal; payload: the cause, if the host knows it
  kMessage = 7,     ///< payload: text
  kRefused = 8,     ///< payload: why nothing was started
  kNotStarted = 9,  ///< payload: why the rank was not started again
  kAcceptor = 10,   ///< payload: the address of the host's acceptor of the register
  kLeaves = 11,     ///< the host is taken away soon
};

/// A message of an agent to the launcher.
struct Frame {
  static constexpr std::size_t kMaxPayload = 1u << 20;
  AgentEvent event = AgentEvent::kHello;
  Rank rank = 0;
  std::int32_t value = 0;
  std::string payload = {};
  bool operator==(const Frame&) const = default;
};
void fields(auto& visit, transport::Like<Frame> auto& frame) {
  visit("frame", transport::within(frame.event, AgentEvent::kHello, AgentEvent::kLeaves),
        frame.rank, frame.value, transport::at_most(Frame::kMaxPayload, frame.payload));
}
/// As it is sent. A hello is a line of text, so that any version reads it.
std::string to_bytes(const Frame& frame);

/// Reads frames from a byte stream that arrives in arbitrary parts. Lines before the hello are
/// output of a login shell and passed to `on_noise`. Lengths are checked before data are stored.
class FrameReader {
 public:
  static constexpr std::size_t kMaxLine = 4096;

  Status feed(std::string_view bytes, const std::function<void(Frame)>& on_frame,
              const std::function<void(std::string_view)>& on_noise);

 private:
  std::string line_;
  bool is_greeted_ = false;
  transport::FrameSplitter frames_{"agent", Frame::kMaxPayload + 64};
};

/// Values are wire format: append only.
enum class AgentTask : std::uint8_t {
  kSignal = 1,  ///< value: the signal for all ranks of the host
  kStart = 2,   ///< value: the incarnation of `rank`, which is started at `local_rank`
  kEnd = 3,     ///< all ranks of the host; value: 1
  kBegin = 4,   ///< the ranks, with the register at `text`; value: 1
  kLeave = 5,   ///< `rank` is to leave its elastic job; value: 1
};

/// What the launcher tells an agent after the HostJob.
struct AgentOrder {
  static constexpr std::size_t kMaxText = 4096;
  AgentTask task = AgentTask::kSignal;
  std::int32_t value = 0;
  Rank rank = 0;
  std::int32_t local_rank = 0;
  std::string text = {};
  bool operator==(const AgentOrder&) const = default;
};
void fields(auto& visit, transport::Like<AgentOrder> auto& order) {
  visit("order", transport::within(order.task, AgentTask::kSignal, AgentTask::kLeave), order.value,
        order.rank, transport::within(order.local_rank, 0, kMaxRanks - 1),
        transport::at_most(AgentOrder::kMaxText, order.text));
  const bool is_signal = order.task == AgentTask::kSignal;
  visit.require(order.value >= 1 && (!is_signal || order.value <= 64),
                "not a signal, start, end, begin or leave");
}

}  // namespace stormo::launch
