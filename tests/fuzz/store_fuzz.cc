// What a Store's client and server send each other, and what the server makes of it.
#include <stormo/base/check.h>
#include <stormo/transport/call/frame.h>
#include <stormo/transport/call/reply.h>
#include <stormo/transport/store/store_message.h>
#include <stormo/transport/store/store_protocol.h>

#include <algorithm>

#include "tests/fuzz/fuzz.h"

namespace stormo::fuzz {
namespace {

using namespace transport;

/// Calls f(body) for every frame of a stream that comes in pieces; false when it is damaged.
template <class F>
bool for_frames(std::string_view stream, std::size_t piece, F f) {
  FrameSplitter splitter{kStoreProtocol, kMaxStoreFrameBytes};
  for (; !stream.empty(); stream.remove_prefix(std::min(piece, stream.size()))) {
    splitter.append(stream.substr(0, piece));
    for (;;) {
      const auto body = splitter.next();
      if (!body.ok()) return false;
      if (!body->has_value()) break;
      if (!f(**body)) return false;
    }
  }
  return true;
}

bool check_request(StoreState& state, std::string_view body) {
  const auto request = decode<StoreRequest>(kStoreProtocol, body);
  if (!request.ok()) return false;
  STORMO_CHECK(encode(*request) == body, "another request");
  const bool kept = state.receive(0, *request, TimePoint{}).ok();
  for (const auto& delivery : state.take_deliveries()) {
    const std::string answer = delivery.frame().substr(kFrameLengthBytes);
    STORMO_CHECK(decode<Reply>(kStoreProtocol, answer).ok(),
                 "an answer that its client cannot read");
  }
  return kept;
}

bool check_reply(std::string_view body) {
  const auto reply = decode<Reply>(kStoreProtocol, body);
  if (!reply.ok()) return false;
  STORMO_CHECK(encode(*reply) == body, "another reply");
  return true;
}

}  // namespace

std::vector<std::string> seeds() {
  const std::vector<StoreRequest> requests = {
      {StoreOp::kSet, 1, 0, "rank/0", "value"}, {StoreOp::kSetIfAbsent, 2, 0, "failure", "why"},
      {StoreOp::kGet, 3, 0, "rank/0", {}},      {StoreOp::kCancel, 3, 0, {}, {}},
      {StoreOp::kWatch, 5, 0, "failure", {}},   {StoreOp::kWill, 6, 500, "failure", "x"},
      {StoreOp::kBeat, 0, 0, {}, "step 12"},    {StoreOp::kGoodbye, 7, 0, {}, {}},
      {StoreOp::kErase, 8, 0, "rank/0", {}},    {StoreOp::kEraseIf, 9, 0, "failure", "why"}};
  std::string session(1, '\x10');
  std::vector<std::string> all;
  for (const StoreRequest& r : requests) {
    all.push_back('\1' + frame(encode(r)));
    session += frame(encode(r));
  }
  all.push_back(session);
  for (const Reply& r : {Reply{1, Code::kOk, "value"}, Reply{5, Code::kOk, "why"},
                         Reply{3, Code::kInvalidArgument, "no key"}}) {
    all.push_back('\1' + frame(encode(r)));
  }
  return all;
}

}  // namespace stormo::fuzz

/// The first byte says in which pieces the rest comes.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stormo::fuzz;
  if (size == 0) return 0;
  const std::string_view stream = as_text(data + 1, size - 1);
  const std::size_t piece = std::size_t{1} + data[0];
  stormo::transport::StoreState state;
  state.open(0, {});
  for_frames(stream, piece, [&](std::string_view body) { return check_request(state, body); });
  state.close(0, {});
  STORMO_CHECK(state.num_sessions() == 0, "a session outlives its connection");
  for_frames(stream, piece, check_reply);
  return 0;
}
