#pragma once

#include <cstdint>
#include <string_view>

#include <stormo/base/status.h>
#include <stormo/transport/call/fields.h>

namespace stormo::transport {

/// What answers a request: its result as bytes, or the message of a failure.
struct Reply {
  std::uint64_t id = 0;  ///< that the request has, or of something that its sender waits for
  Code code = Code::kOk;
  std::string_view body;  ///< borrowed
  bool operator==(const Reply&) const = default;
};
void fields(auto& visit, Like<Reply> auto& reply) {
  visit("reply", reply.id, within(reply.code, Code::kOk, Code::kException), rest(reply.body));
}

/// Of an outcome that is borrowed.
inline Reply reply_of(std::uint64_t id, const Result<std::string>& outcome) {
  if (outcome.ok()) return {.id = id, .body = *outcome};
  return {.id = id, .code = outcome.status().code(), .body = outcome.status().message()};
}
/// The result that a reply tells.
inline Result<std::string> outcome_of(const Reply& reply) {
  if (reply.code != Code::kOk) return Status(reply.code, std::string(reply.body));
  return std::string(reply.body);
}

}  // namespace stormo::transport
