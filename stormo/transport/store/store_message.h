#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <stormo/base/status.h>
#include <stormo/transport/store/store.h>

namespace stormo::transport {

/// What a client asks for. Values are wire format: append only.
enum class StoreOp : std::uint8_t {
  kSet = 1,
  kSetIfAbsent = 2,
  kGet = 3,     ///< answered when the key has a value
  kCancel = 4,  ///< forgets the get of the same id; no answer
  kAdd = 5,
  kWatch = 6,  ///< answered by events that carry its id
  kWill = 7,   ///< number: silence in nanoseconds
  kBeat = 8,   ///< value: note; no answer
  kGoodbye = 9,
  kErase = 10,
};

inline constexpr std::size_t kMaxNoteBytes = 1024;
/// Room for what the server appends to a will.
inline constexpr std::size_t kMaxWillBytes = kMaxValueBytes - 4096;
inline constexpr std::size_t kMaxStoreFrameBytes = kMaxKeyBytes + kMaxValueBytes + 64;

struct StoreRequest {
  StoreOp op = StoreOp::kBeat;
  std::uint32_t id = 0;  ///< chosen by the client, returned in the reply
  std::int64_t number = 0;
  std::string_view key;
  std::string_view value;
  bool operator==(const StoreRequest&) const = default;
};

struct StoreReply {
  bool event = false;  ///< a watched key was set; `id` is the watch's
  std::uint32_t id = 0;
  Code code = Code::kOk;
  std::string_view value;  ///< the message when `code` is a failure
  bool operator==(const StoreReply&) const = default;
};

/// Frames with their length in front, ready to send.
std::string encode(const StoreRequest& request);
std::string encode(const StoreReply& reply);
/// All of encode(reply) but the bytes of its value, which follow on the stream: a value that many
/// wait for is not copied for each of them.
std::string encode_head(const StoreReply& reply);
/// Of a frame without its length; views into `body`. Strict: anything out of bounds, unknown or
/// left over is kCorrupt.
Result<StoreRequest> decode_request(std::string_view body);
Result<StoreReply> decode_reply(std::string_view body);

/// Cuts a byte stream into frames. Holds what was received, never what a length promises.
class FrameSplitter {
 public:
  void append(std::string_view bytes) { buffer_.append(bytes); }
  /// The next complete frame's body, valid until the next call of any member; nothing when more
  /// bytes are needed; kCorrupt when the announced length exceeds kMaxStoreFrameBytes.
  Result<std::optional<std::string_view>> next();
  std::size_t buffered() const { return buffer_.size() - begin_; }

 private:
  std::string buffer_;
  std::size_t begin_ = 0;
};

}  // namespace stormo::transport
