#include <stormo/membership/etcd_register.h>

#include <fmt/format.h>
#include <stormo/base/printable.h>
#include <stormo/http/http_post.h>
#include <stormo/membership/etcd_message.h>
#include <stormo/membership/random_id.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace stormo::membership {
namespace {

/// For which an endpoint is waited for, before the next one is asked: more than an election takes.
/// Doubled when all of them were too slow.
constexpr Duration kFirstPatience = std::chrono::seconds(2);
constexpr Duration kLongestPatience = std::chrono::seconds(32);
/// Between two rounds of the endpoints.
constexpr Duration kFirstRest = std::chrono::milliseconds(50);
constexpr Duration kLongestRest = std::chrono::milliseconds(500);
constexpr std::size_t kMaxQuoted = 100;

/// The value of the key. Its origin says whether a record is that of this very call, when the
/// answer was lost, and not the same one of somebody else.
struct EtcdValue {
  std::uint64_t origin = 0;
  std::string record;
};
void fields(auto& visit, transport::Like<EtcdValue> auto& value) {
  visit("value", value.origin, transport::at_most(kMaxRecordBytes, value.record));
}

struct Present {
  std::uint64_t origin = 0;
  EpochRecord record;
};
Result<Present> present_of(const EtcdKey& key) {
  if (key.version == 0) return Present{};
  STORMO_ASSIGN_OR_RETURN(const auto value, transport::decode<EtcdValue>("etcd", key.value));
  STORMO_ASSIGN_OR_RETURN(EpochRecord record, decode_record(value.record));
  if (record.epoch == key.version) return Present{value.origin, std::move(record)};
  return Status(Code::kCorrupt,
                fmt::format("it has the record of epoch {} as version {}: something else has "
                            "written or deleted it",
                            record.epoch, key.version));
}

std::string first_line(std::string_view text) {
  return printable_line(text.substr(0, std::min(text.find('\n'), kMaxQuoted)));
}

}  // namespace

EtcdRegister::EtcdRegister(Options options)
    : key_(std::move(options.key)),
      user_(std::move(options.user)),
      password_(std::move(options.password)) {
  for (const transport::HostPort& address : options.endpoints) {
    endpoints_.push_back({transport::to_string(address), Status(Code::kIo, "not asked")});
  }
}

Result<EpochRecord> EtcdRegister::read(Deadline by) {
  EtcdKey key;
  const auto take = [&](std::string_view body) -> Status {
    STORMO_ASSIGN_OR_RETURN(key, etcd_read_answer(body));
    return {};
  };
  STORMO_RETURN_IF_ERROR(ask("/v3/kv/range", etcd_read(key_), take, by));
  Result<Present> present = present_of(key);
  if (!present.ok()) return present.status().within(fmt::format("the key '{}' of etcd", key_));
  return std::move(present->record);
}

Result<Register::Swap> EtcdRegister::compare_and_swap(const EpochRecord& next, Deadline by) {
  STORMO_RETURN_IF_ERROR(check(next));
  const EtcdValue mine{.origin = random_id(), .record = encode_record(next)};
  EtcdChange change;
  const auto take = [&](std::string_view body) -> Status {
    STORMO_ASSIGN_OR_RETURN(change, etcd_change_answer(body));
    return {};
  };
  const Status asked =
      ask("/v3/kv/txn", etcd_change(key_, next.epoch - 1, transport::encode(mine)), take, by);
  if (!asked.ok() && may_be_done_) {
    return Status(asked.code(),
                  asked.message() + "; the change may take place all the same: read again");
  }
  STORMO_RETURN_IF_ERROR(asked);
  if (change.done) return Swap{.done = true, .present = next};
  Result<Present> present = present_of(change.present);
  if (!present.ok()) return present.status().within(fmt::format("the key '{}' of etcd", key_));
  // done by a request whose answer was lost
  if (present->origin == mine.origin) return Swap{.done = true, .present = next};
  // Such a request is too late once somebody else has written this epoch. But before that it may
  // come yet, and later records hide it.
  if (may_be_done_ && present->record.epoch != next.epoch) {
    return Status(Code::kCancelled,
                  fmt::format("an answer of etcd was lost, and epoch {}, which is the present one, "
                              "does not tell whether epoch {} was or will be this record",
                              present->record.epoch, next.epoch));
  }
  return Swap{.done = false, .present = std::move(present->record)};
}

/// Until an endpoint gives an answer that `take` takes, or all of them refuse, or `by`.
Status EtcdRegister::ask(std::string_view path, const std::string& body, const Take& take,
                         Deadline by) {
  may_be_done_ = false;
  Duration patience = kFirstPatience, rest = kFirstRest;
  for (;;) {
    std::size_t refusals = 0;
    for (std::size_t i = 0; i < endpoints_.size(); ++i) {
      if (by.expired()) return failure(Code::kDeadlineExceeded, "has not answered in time");
      Endpoint& endpoint = endpoints_[current_];
      endpoint.trouble =
          ask_one(endpoint, path, body, take, Deadline::after(std::min(patience, by.remaining())));
      if (endpoint.trouble.ok()) return {};
      refusals += endpoint.trouble.code() == Code::kRefused ? 1 : 0;
      current_ = (current_ + 1) % endpoints_.size();
    }
    if (refusals == endpoints_.size()) return failure(Code::kRefused, "refuses this");
    std::this_thread::sleep_until(std::min(by.when(), std::chrono::steady_clock::now() + rest));
    patience = std::min(2 * patience, kLongestPatience);
    rest = std::min(2 * rest, kLongestRest);
  }
}

/// With a token of the user. That of an earlier call may have expired.
Status EtcdRegister::ask_one(const Endpoint& endpoint, std::string_view path,
                             const std::string& body, const Take& take, Deadline by) {
  if (user_.empty()) return post(endpoint, path, body, take, by);
  if (!token_.empty()) {
    const Status done = post(endpoint, path, body, take, by);
    if (done.code() != Code::kRefused) return done;
    token_.clear();
  }
  const auto take_token = [&](std::string_view answer) -> Status {
    STORMO_ASSIGN_OR_RETURN(token_, etcd_login_answer(answer));
    return {};
  };
  const bool may_be_done = may_be_done_;
  const Status logged_in =
      post(endpoint, "/v3/auth/authenticate", etcd_login(user_, password_), take_token, by);
  may_be_done_ = may_be_done;  // a lost token changes nothing
  STORMO_RETURN_IF_ERROR(logged_in);
  return post(endpoint, path, body, take, by);
}

Status EtcdRegister::post(const Endpoint& endpoint, std::string_view path, const std::string& body,
                          const Take& take, Deadline by) {
  const http::HttpAnswer answer =
      http::http_post({.url = fmt::format("http://{}{}", endpoint.address, path),
                       .body = body,
                       .authorization = token_},
                      by.remaining());
  if (answer.exchange.ok() && answer.code == 200) {
    Status taken = take(answer.body);
    if (!taken.ok()) may_be_done_ = true;
    return taken;
  }
  const bool is_passing = answer.code >= 500 || answer.code == 408 || answer.code == 429;
  const bool is_refused = answer.exchange.ok() && answer.code >= 400 && !is_passing;
  if (answer.was_sent && !is_refused) may_be_done_ = true;
  STORMO_RETURN_IF_ERROR(answer.exchange);
  const std::string error = printable_line(etcd_error(answer.body));
  if (error.empty()) {
    return Status(is_passing ? Code::kIo : Code::kRefused,
                  fmt::format("HTTP {} ({}): it is no etcd of version 3.4 or newer", answer.code,
                              first_line(answer.body)));
  }
  if (is_passing) return io_error(error);
  return Status(Code::kRefused, user_.empty() ? fmt::format("{} for a caller without a user", error)
                                              : fmt::format("{} for the user '{}'", error, user_));
}

Status EtcdRegister::failure(Code code, std::string_view what) const {
  std::vector<std::string> troubles;
  for (const Endpoint& e : endpoints_) {
    troubles.push_back(fmt::format("{}: {}", e.address, e.trouble.message()));
  }
  return Status(code,
                fmt::format("etcd, key '{}', {} ({})", key_, what, fmt::join(troubles, "; ")));
}

}  // namespace stormo::membership
