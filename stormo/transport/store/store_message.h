#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <stormo/base/status.h>
#include <stormo/transport/call/fields.h>
#include <stormo/transport/store/store.h>

namespace stormo::transport {

/// Requests of a client. Values are wire format: append only.
enum class StoreOp : std::uint8_t {
  kSet = 1,
  kSetIfAbsent = 2,
  kGet = 3,     ///< answered when the key has a value
  kCancel = 4,  ///< forgets the get of the same id; no answer
  kErase = 5,
  kWatch = 6,  ///< answered by events that carry its id
  kWill = 7,
  kBeat = 8,  ///< value: note; answered if it has an id
  kGoodbye = 9,
  kAppend = 10,   ///< answered by the whole value
  kEraseIf = 11,  ///< erases the key if it has this value
};

inline constexpr std::size_t kMaxNoteBytes = 1024;
/// Room for what the server appends to a will.
inline constexpr std::size_t kMaxWillBytes = kMaxValueBytes - 4096;
inline constexpr std::size_t kMaxStoreFrameBytes = kMaxKeyBytes + kMaxValueBytes + 64;
inline constexpr std::string_view kStoreProtocol = "Store";

/// What answers it is a Reply.
struct StoreRequest {
  StoreOp op = StoreOp::kBeat;
  std::uint32_t id = 0;     ///< chosen by the client, returned in the reply
  std::int64_t number = 0;  ///< kWill: silence, kBeat: how late it is; in nanoseconds
  std::string_view key;
  std::string_view value;
  bool operator==(const StoreRequest&) const = default;
};

void fields(auto& visit, Like<StoreRequest> auto& r) {
  visit("request", within(r.op, StoreOp::kSet, StoreOp::kEraseIf), r.id, r.number,
        at_most(kMaxKeyBytes, r.key), at_most(kMaxValueBytes, r.value));
  const bool has_key =
      r.op != StoreOp::kCancel && r.op != StoreOp::kBeat && r.op != StoreOp::kGoodbye;
  visit.require(has_key != r.key.empty(), "a key is missing or out of place");
  visit.require(r.op != StoreOp::kBeat || r.value.size() <= kMaxNoteBytes, "note too long");
  visit.require(r.op != StoreOp::kWill || (r.value.size() <= kMaxWillBytes && r.number >= 0),
                "will out of bounds");
}

}  // namespace stormo::transport
