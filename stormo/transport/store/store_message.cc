#include <fmt/format.h>
#include <stormo/transport/store/store_message.h>
#include <stormo/transport/store/wire.h>

namespace stormo::transport {
namespace {

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
  return frame(body);
}

std::string encode(const StoreReply& reply) {
  std::string frame = encode_head(reply);
  frame += reply.value;
  return frame;
}

std::string encode_head(const StoreReply& reply) {
  constexpr std::size_t kFields = 1 + 4 + 1 + 4;
  std::string head;
  head.reserve(kFrameLengthBytes + kFields);
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

}  // namespace stormo::transport
