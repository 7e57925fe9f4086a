// What proposers and acceptors of the membership register send each other, its records, what an
// etcd answers, and what members of an elastic job tell each other.
#include <stormo/base/check.h>
#include <stormo/membership/acceptor/register_wire.h>
#include <stormo/membership/elastic_wire.h>
#include <stormo/membership/epoch_record.h>
#include <stormo/membership/etcd_message.h>
#include <stormo/protocol/register/acceptor.h>
#include <stormo/protocol/register/proposer.h>

#include <algorithm>
#include <optional>
#include <variant>

#include "tests/fuzz/fuzz.h"

namespace stormo::fuzz {
namespace {

using namespace protocol;
using transport::decode;
using transport::encode;

/// What an acceptor makes of it can be stored, and its answer be read.
void check_request(std::string_view bytes) {
  const auto request = decode<RegisterRequest>(kRegisterProtocol, bytes);
  if (!request.ok()) return;
  STORMO_CHECK(encode(*request) == bytes, "another request");
  const AcceptorDecision decision = decide({}, *request);
  STORMO_CHECK(decode<AcceptorState>(kRegisterProtocol, encode(decision.next)).ok(),
               "a state that cannot be read again");
  STORMO_CHECK(decode<RegisterReply>(kRegisterProtocol, encode(decision.reply)).ok(),
               "an answer that its proposer cannot read");
}

/// A proposer goes on with what it may send.
void check_reply(std::string_view bytes) {
  auto reply = decode<RegisterReply>(kRegisterProtocol, bytes);
  if (!reply.ok()) return;
  STORMO_CHECK(encode(*reply) == bytes, "another answer");
  const AcceptorState& state = reply->state;
  if (std::max(state.promised.counter, state.value.version) == kMaxCounter) return;
  Proposer proposer(1, 1);
  proposer.change(state.value.version, "record");
  for (int i = 0; i < 3; ++i) {
    reply->round = proposer.request().round;
    (void)proposer.receive(0, *reply);
    if (proposer.is_contested()) proposer.restart();
    STORMO_CHECK(decode<RegisterRequest>(kRegisterProtocol, encode(proposer.request())).ok(),
                 "a request that no acceptor reads");
  }
}

void check_record(std::string_view bytes) {
  const auto record = membership::decode_record(bytes);
  if (record.ok()) {
    STORMO_CHECK(membership::encode_record(*record) == bytes, "another record");
  }
}

void check_member(std::string_view bytes) {
  using Frame = std::optional<ElasticMessage>;
  const auto frame = decode<Frame>(kElasticProtocol, bytes);
  if (!frame.ok()) return;
  STORMO_CHECK(encode(*frame) == bytes, "another message");
  if (!*frame || !std::holds_alternative<RecordNews>(**frame)) return;
  const ElasticRecord& record = std::get<RecordNews>(**frame).record;
  STORMO_CHECK(
      membership::elastic_record_of(membership::epoch_record_of(record, "digits")) == record,
      "another record");
}

void check_etcd(std::string_view json) {
  const auto key = membership::etcd_read_answer(json);
  STORMO_CHECK(!key.ok() || key->version > 0 || key->value.empty(), "a value without a version");
  const auto change = membership::etcd_change_answer(json);
  STORMO_CHECK(!change.ok() || !change->done || change->present.version == 0,
               "a change that is done and is not");
  (void)membership::etcd_login_answer(json);
  (void)membership::etcd_error(json);
}

}  // namespace

std::vector<std::string> seeds() {
  using Kind = RegisterRequest::Kind;
  const RegisterValue value{.version = 1, .origin = {2, 3}, .bytes = "record"};
  const membership::EpochRecord record{
      .job = "digits",
      .epoch = 1,
      .members = {{.identity = "a/0", .incarnation = 1, .address = "10.0.0.1:4000"}},
      .donors = {"a/0"}};
  const MemberStatus status{.from = {"a/0", 1},
                            .standing = Standing::kRunning,
                            .heard = {{"b/0", 1}},
                            .dead = {{"c", 2}},
                            .wish = membership::elastic_record_of(record),
                            .ready_group = 1};
  const RecordNews news{membership::elastic_record_of(record)};
  const std::string etcd_answer = R"({"header":{"revision":"5"},)";
  return {'\0' + encode(RegisterRequest{.kind = Kind::kAsk, .round = 1}),
          '\0' + encode(RegisterRequest{.kind = Kind::kPrepare, .round = 2, .ballot = {2, 3}}),
          '\0' + encode(RegisterRequest{
                     .kind = Kind::kAccept, .round = 3, .ballot = {2, 3}, .value = value}),
          '\1' + encode(RegisterReply{.round = 1, .granted = true}),
          '\1' + encode(RegisterReply{
                     .round = 3,
                     .granted = true,
                     .state = {.promised = {4, 1}, .accepted = {2, 3}, .value = value}}),
          '\2' + membership::encode_record(record),
          '\3' + etcd_answer + R"("kvs":[{"key":"aw==","version":"7","value":"YQ=="}]})",
          '\3' + etcd_answer + R"("succeeded":true,"responses":[{"response_put":{}}]})",
          '\3' + etcd_answer + R"("responses":[{"response_range":{"kvs":[{"version":"7"}]}}]})",
          '\3' + etcd_answer + R"("token":"IEt.14"})",
          '\3' + std::string(R"({"error":"etcdserver: permission denied","code":7})"),
          '\4' + encode(std::optional<ElasticMessage>(status)),
          '\4' + encode(std::optional<ElasticMessage>(news))};
}

}  // namespace stormo::fuzz

/// The first byte says what the rest is.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stormo::fuzz;
  if (size == 0) return 0;
  const std::string_view bytes = as_text(data + 1, size - 1);
  switch (data[0]) {
    case 0: check_request(bytes); break;
    case 1: check_reply(bytes); break;
    case 3: check_etcd(bytes); break;
    case 4: check_member(bytes); break;
    default: check_record(bytes); break;
  }
  return 0;
}
