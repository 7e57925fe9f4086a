#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <stormo/base/status.h>
#include <stormo/transport/store/frame.h>
#include <stormo/transport/store/store.h>

namespace stormo::transport {

/// Requests of a client. Values are wire format: append only.
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

/// Frames preceded by their length, ready to send.
std::string encode(const StoreRequest& request);
std::string encode(const StoreReply& reply);
/// encode(reply) without the bytes of its value, which are sent after it, so that a value for many
/// clients is not copied for each of them.
std::string encode_head(const StoreReply& reply);
/// Decode a frame without its length; the result has views into `body`. Strict: kCorrupt for values
/// out of bounds, unknown values and extra bytes.
Result<StoreRequest> decode_request(std::string_view body);
Result<StoreReply> decode_reply(std::string_view body);

}  // namespace stormo::transport
