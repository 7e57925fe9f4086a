#include <fmt/format.h>
#include <stormo/transport/store/store_message.h>
#include <stormo/transport/store/wire.h>

namespace stormo::transport {
namespace {

constexpr std::size_t kLengthBytes = 4;

/// Puts the length, known only now, in front.
std::string with_length(std::string body) {
  std::string frame;
  frame.reserve(kLengthBytes + body.size());
  put(frame, static_cast<std::uint32_t>(body.size()));
  frame += body;
  return frame;
}

Status corrupt(std::string_view what) {
  return {Code::kCorrupt, fmt::format("Store protocol: {}", what)};
}

}  // namespace

std::string encode(const StoreRequest& request) {
  std::string body;
  put(body, static_cast<std::uint8_t>(request.op));
  put(body, request.id);
  put(body, request.number);
  put_bytes(body, request.key);
  put_bytes(body, request.value);
  return with_length(std::move(body));
}

std::string encode(const StoreReply& reply) {
  std::string frame = encode_head(reply);
  frame += reply.value;
  return frame;
}

std::string encode_head(const StoreReply& reply) {
  constexpr std::size_t kFields = 1 + 4 + 1 + 4;
  std::string head;
  head.reserve(kLengthBytes + kFields);
  put(head, static_cast<std::uint32_t>(kFields + reply.value.size()));
  put(head, static_cast<std::uint8_t>(reply.event ? 1 : 0));
  put(head, reply.id);
  put(head, static_cast<std::uint8_t>(reply.code));
  put(head, static_cast<std::uint32_t>(reply.value.size()));
  return head;
}

Result<StoreRequest> decode_request(std::string_view body) {
  WireReader in(body);
  StoreRequest out;
  std::uint8_t op = 0;
  in.read(op);
  in.read(out.id);
  in.read(out.number);
  in.read_bytes(kMaxKeyBytes, out.key);
  in.read_bytes(kMaxValueBytes, out.value);
  if (!in.done()) return corrupt("malformed request");
  if (op < static_cast<std::uint8_t>(StoreOp::kSet) ||
      op > static_cast<std::uint8_t>(StoreOp::kErase)) {
    return corrupt(fmt::format("unknown operation {}", op));
  }
  out.op = static_cast<StoreOp>(op);
  const bool has_key =
      out.op != StoreOp::kCancel && out.op != StoreOp::kBeat && out.op != StoreOp::kGoodbye;
  if (has_key == out.key.empty()) return corrupt("a key is missing or out of place");
  if (out.op == StoreOp::kBeat && out.value.size() > kMaxNoteBytes) return corrupt("note too long");
  if (out.op == StoreOp::kWill && (out.value.size() > kMaxWillBytes || out.number < 0)) {
    return corrupt("will out of bounds");
  }
  return out;
}

Result<StoreReply> decode_reply(std::string_view body) {
  WireReader in(body);
  StoreReply out;
  std::uint8_t event = 0;
  std::uint8_t code = 0;
  in.read(event);
  in.read(out.id);
  in.read(code);
  in.read_bytes(kMaxValueBytes, out.value);
  if (!in.done() || event > 1 || code > static_cast<std::uint8_t>(Code::kException)) {
    return corrupt("malformed reply");
  }
  out.event = event == 1;
  out.code = static_cast<Code>(code);
  return out;
}

Result<std::optional<std::string_view>> FrameSplitter::next() {
  const std::string_view rest = std::string_view(buffer_).substr(begin_);
  std::uint32_t length = 0;
  const bool has_length = WireReader(rest).read(length);
  if (has_length && length > kMaxStoreFrameBytes) {
    return corrupt(
        fmt::format("frame of {} bytes, at most {} are allowed", length, kMaxStoreFrameBytes));
  }
  if (!has_length || rest.size() < kLengthBytes + length) {
    buffer_.erase(0, begin_);
    begin_ = 0;
    return std::optional<std::string_view>();
  }
  begin_ += kLengthBytes + length;
  return std::optional(rest.substr(kLengthBytes, length));
}

}  // namespace stormo::transport
