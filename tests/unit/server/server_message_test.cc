#include <stormo/server/message/server_message.h>

#include <sys/socket.h>

#include <array>

#include <gtest/gtest.h>

#include <stormo/base/rng.h>
#include <stormo/server/message/data_message.h>
#include <stormo/server/message/run_terms.h>
#include <stormo/transport/call/frame_connection.h>

namespace stormo::server {
namespace {

RunTerms some_terms() {
  return {.facts = {{"recipe", "mnist"}, {"data", ""}},
          .pieces = {{{.parameter = 3, .begin = 5, .end = 80, .dtype = DType::kFloat64}},
                     {{.parameter = 0, .begin = 0, .end = 7, .dtype = DType::kFloat32},
                      {.parameter = 1, .begin = 2, .end = 9, .dtype = DType::kFloat32}}},
          .workers = 5,
          .optimizer = {.kind = optim::Options::Kind::kAdamW, .lr = 0.3, .nesterov = true},
          .policy = {.kind = protocol::PolicyOptions::Kind::kSsp, .bound = 4}};
}

TEST(RunTerms, ComeBackFromBytesUnchanged) {
  const RunTerms terms = some_terms();
  const RunTerms back = decode<RunTerms>(encode(terms)).take_or_throw();
  EXPECT_EQ(difference(terms, back, "a", "b"), std::nullopt);
  EXPECT_EQ(back.pieces, terms.pieces);
  EXPECT_EQ(encode(back), encode(terms));
}

TEST(RunTerms, EveryKindOfDifferenceIsNamed) {
  const auto name = [](const std::function<void(RunTerms&)>& change) {
    RunTerms other = some_terms();
    change(other);
    return difference(other, some_terms(), "here", "there").value_or("none");
  };
  EXPECT_EQ(name([](RunTerms& t) { t.facts[1].second = "x"; }), "data is x at here, but  at there");
  EXPECT_EQ(name([](RunTerms& t) { t.workers = 6; }),
            "number of workers is 6 at here, but 5 at there");
  EXPECT_EQ(name([](RunTerms& t) { t.policy.warm_start = 9; }),
            "warm start is 9 at here, but 0 at there");
  EXPECT_EQ(name([](RunTerms& t) { t.policy.bound = 9; }),
            "bound of the policy is 9 at here, but 4 at there");
  EXPECT_EQ(name([](RunTerms& t) { t.optimizer.beta2 = 0.5; }),
            "optimizer.beta2 is 0.5 at here, but 0.999 at there");
  EXPECT_TRUE(
      name([](RunTerms& t) { t.pieces[1][1].end = 10; }).starts_with("shard 1 is 2 pieces"));
}

TEST(RunTerms, WhatServersCannotServeIsRefused) {
  EXPECT_TRUE(check(some_terms()).ok());
  RunTerms terms = some_terms();
  terms.optimizer.kind = optim::Options::Kind::kLars;
  EXPECT_EQ(check(terms).code(), Code::kInvalidArgument);
  terms = some_terms();
  terms.pieces[0][0].end = kMaxPieceElements;
  EXPECT_EQ(check(terms).code(), Code::kInvalidArgument);
  terms = some_terms();
  terms.pieces[0].clear();
  EXPECT_EQ(check(terms).code(), Code::kInvalidArgument);
}

TEST(ServerMessage, HellosComeBackFromBytesUnchanged) {
  const WorkerHello worker{.worker = 2,
                           .workers = 3,
                           .server = 1,
                           .servers = 4,
                           .token = 77,
                           .timeout_ns = 12,
                           .place = Place::own(),
                           .backups = true,
                           .successor = "node7:4242"};
  EXPECT_EQ(decode<WorkerHello>(encode(worker)).take_or_throw(), worker);
  const ServerHello server{.place = Place::own(),
                           .ledger = {.fd = 5, .bytes = 4096},
                           .chief = {.number = 1, .worker = 3}};
  EXPECT_EQ(decode<ServerHello>(encode(server)).take_or_throw(), server);
  const std::vector<SharedFile> files = {{.fd = 3, .bytes = 1}, {.fd = 4, .bytes = 2}};
  EXPECT_EQ(decode<std::vector<SharedFile>>(encode(files)).take_or_throw(), files);
}

TEST(ServerMessage, WhatServersSayToEachOtherComesBackFromBytesUnchanged) {
  const ServerNews news{
      .chief = {.number = 4, .worker = 2}, .is_over = true, .lost = {3, 0}, .complaints = {1}};
  EXPECT_EQ(decode<ServerNews>(encode(news)).take_or_throw(), news);
  const WorkerBeat beat{
      .state = {.progress = 7, .steps = 3, .waits = true, .finishes = true, .doing = "step 4"},
      .news = news};
  EXPECT_EQ(decode<WorkerBeat>(encode(beat)).take_or_throw(), beat);
  const Attachment attachment{.worker = 5, .part = 2, .token = 9};
  EXPECT_EQ(decode<Attachment>(encode(attachment)).take_or_throw(), attachment);
  const DataRequest request =
      decode<DataRequest>(
          encode(DataRequest{
              .op = DataOp::kComeBack, .given = {}, .worker = 3, .origin = 77, .result = "same"}))
          .take_or_throw();
  EXPECT_EQ(request.op, DataOp::kComeBack);
  EXPECT_EQ(request.worker, 3);
  EXPECT_EQ(request.origin, 77u);
  EXPECT_EQ(request.result, "same");
}

optim::VectorProgram some_program() {
  return {optim::take_gradient(1),
          optim::combine(2, {{0.5, 0}, {-1, 1}}),
          optim::dot(1, 2),
          optim::set_weights({{1, 2}}),
          {.kind = optim::VectorStep::Kind::kUpdate, .lr = 0.25}};
}

TEST(ServerMessage, WhatACoordinatorSaysComesBackFromBytesUnchanged) {
  EXPECT_EQ(decode<optim::VectorProgram>(encode(some_program())).take_or_throw(), some_program());
  const std::vector<double> numbers = {1.5, -0.0, 1e300};
  EXPECT_EQ(decode<std::vector<double>>(encode(numbers)).take_or_throw(), numbers);
  std::string many = encode(some_program());
  many[3] = '\x7f';  // says that there are two thousand million steps
  EXPECT_EQ(decode<optim::VectorProgram>(many).status().code(), Code::kCorrupt);
  many = encode(numbers);
  many[3] = '\x7f';
  EXPECT_EQ(decode<std::vector<double>>(many).status().code(), Code::kCorrupt);
  std::string request =
      encode(DataRequest{.op = DataOp::kPush, .push = {.pieces = {}, .portion = 511, .batch = 9}});
  EXPECT_EQ(decode<DataRequest>(request).take_or_throw().push.portion, 511);
  request = encode(
      DataRequest{.op = DataOp::kPush, .push = {.pieces = {}, .portion = protocol::kMaxPortions}});
  EXPECT_EQ(decode<DataRequest>(request).status().code(), Code::kCorrupt);
  // a part holds what it has, a push may name what was sent before
  for (const auto& [op, fits] : {std::pair(DataOp::kPush, true), std::pair(DataOp::kPart, false)}) {
    request = encode(DataRequest{.op = op, .given = "\1\3"});
    EXPECT_EQ(decode<DataRequest>(request).ok(), fits);
  }
  // the lengths of rows belong to arrays that are given in rows, and to a push
  const auto is_taken = [](DataOp op, const std::string& given, std::vector<RowsHead> rows) {
    return decode<DataRequest>(encode(DataRequest{.op = op, .given = given, .rows = rows})).ok();
  };
  EXPECT_TRUE(is_taken(DataOp::kPush, "\1\2", {{}, {3, 4}}));
  EXPECT_FALSE(is_taken(DataOp::kPush, "\1\2", {}));
  EXPECT_FALSE(is_taken(DataOp::kPush, "\1\2", {{3, 4}}));
  EXPECT_FALSE(is_taken(DataOp::kPush, "\1\2", {{3, 4}, {3, 4}}));
  EXPECT_FALSE(is_taken(DataOp::kPush, "\1\2", {{}, {3, 0}}));
  EXPECT_FALSE(is_taken(DataOp::kPush, "\1\2", {{}, {-1, 4}}));
  EXPECT_FALSE(is_taken(DataOp::kPart, "\1", {{}}));
}

TEST(FrameConnection, WhoDoesNotReadIsCutOff) {
  std::array<int, 2> ends = {-1, -1};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  const transport::Descriptor other(ends[1]);
  transport::FrameConnection connection(transport::Channel(transport::Descriptor{ends[0]}),
                                        control_frames(), 1 << 20);
  const std::string frame(1 << 16, 'x');
  Status status;
  int sent = 0;
  for (; status.ok() && sent < 1000; ++sent) {
    connection.send(frame);
    status = connection.flush();
  }
  EXPECT_EQ(status.code(), Code::kExhausted);
  EXPECT_GT(sent, 16);
  EXPECT_LT(sent, 100) << "the socket holds a part";
}

TEST(ServerMessage, FieldsOutOfBoundsAreRefused) {
  WorkerHello hello{.successor = std::string(kMaxAddressBytes, 'a')};
  EXPECT_TRUE(decode<WorkerHello>(encode(hello)).ok());
  hello.successor += 'a';
  EXPECT_EQ(decode<WorkerHello>(encode(hello)).status().code(), Code::kCorrupt);
  std::string two = encode(WorkerHello{});
  two[two.size() - 5] = 2;  // backups, before the length of the address
  EXPECT_EQ(decode<WorkerHello>(two).status().code(), Code::kCorrupt);
  std::string news = encode(ServerNews{.lost = {1}});
  constexpr std::size_t kIsOver = 8 + 4;
  news[kIsOver] = 2;
  EXPECT_EQ(decode<ServerNews>(news).status().code(), Code::kCorrupt);
  news[kIsOver] = 0;
  EXPECT_TRUE(decode<ServerNews>(news).ok());
  news[kIsOver + 4] = '\x7f';  // says that there are two thousand million
  EXPECT_EQ(decode<ServerNews>(news).status().code(), Code::kCorrupt);
  EXPECT_EQ(decode<ServerNews>("").status().code(), Code::kCorrupt);
  std::string request = encode(DataRequest{});
  request[0] = static_cast<char>(static_cast<int>(DataOp::kElect) + 1);
  EXPECT_EQ(decode<DataRequest>(request).status().code(), Code::kCorrupt);
  request = encode(DataRequest{.op = DataOp::kSet, .given = {kRowsGiven}});
  EXPECT_EQ(decode<DataRequest>(request).status().code(), Code::kCorrupt) << "rows are pushed";
}

// Every decoder takes any bytes: cut, changed and random ones. What it accepts encodes again to the
// same bytes, so nothing is ignored.
TEST(ServerMessage, AnyBytesAreDecodedOrRefused) {
  Rng rng(1, "bytes");
  const std::vector<std::string> good = {
      encode(some_terms()),
      encode(WorkerHello{.place = Place::own()}),
      encode(ServerHello{.place = Place::own()}),
      encode(std::vector<SharedFile>{{.fd = 3, .bytes = 1}}),
      encode(DataRequest{.op = DataOp::kPush, .id = 3, .given = std::string("\0\1", 2)}),
      encode(transport::Reply{.id = 4, .code = Code::kPeerLost, .body = "why"}),
      encode(DataRequest{.op = DataOp::kPush, .given = {kRowsGiven}, .rows = {{3, 4}}}),
      encode(ViewHead{.version = 1, .commit = 2, .updates = {3, 4}}),
      encode(ViewHead{.version = 1, .has_changes = true, .ranges = 2, .bytes = 64}),
      encode(Shard::Pushed{}),
      encode(Shard::Joined{}),
      encode(protocol::ShardState(3)),
      encode(Ledger::Terms{}),
      encode(Ledger::Turn{.task = StepTask{.part = 1, .step = 2}, .losses = {{.worker = 2}}}),
      encode(Attachment{}),
      encode(some_program()),
      encode(std::vector<double>{0.5, -1}),
      encode(ServerNews{.lost = {1}, .complaints = {0}}),
      encode(WorkerBeat{.state = {.waits = true, .doing = "step 4"}, .news = {.lost = {1}}})};
  int accepted = 0, refused = 0;
  const auto expect_strict = [&](const auto& decoded, const std::string& bytes) {
    if (decoded.ok()) {
      EXPECT_EQ(encode(*decoded), bytes);
    }
    ++(decoded.ok() ? accepted : refused);
  };
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes = good[rng.below(good.size())];
    if (round % 3 == 0) bytes.resize(rng.below(bytes.size() + 1));
    for (std::uint64_t n = rng.below(4); n > 0 && !bytes.empty(); --n) {
      bytes[rng.below(bytes.size())] = static_cast<char>(rng.below(256));
    }
    expect_strict(decode<RunTerms>(bytes), bytes);
    expect_strict(decode<WorkerHello>(bytes), bytes);
    expect_strict(decode<ServerHello>(bytes), bytes);
    expect_strict(decode<std::vector<SharedFile>>(bytes), bytes);
    expect_strict(decode<DataRequest>(bytes), bytes);
    expect_strict(decode<transport::Reply>(bytes), bytes);
    expect_strict(decode<ViewHead>(bytes), bytes);
    expect_strict(decode<Shard::Pushed>(bytes), bytes);
    expect_strict(decode<Shard::Joined>(bytes), bytes);
    expect_strict(decode<protocol::ShardState>(bytes), bytes);
    expect_strict(decode<Ledger::Terms>(bytes), bytes);
    expect_strict(decode<Attachment>(bytes), bytes);
    expect_strict(decode<optim::VectorProgram>(bytes), bytes);
    expect_strict(decode<std::vector<double>>(bytes), bytes);
    expect_strict(decode<ServerNews>(bytes), bytes);
    expect_strict(decode<WorkerBeat>(bytes), bytes);
    expect_strict(decode<Ledger::Turn>(bytes), bytes);
    expect_strict(decode<std::uint64_t>(bytes), bytes);
    expect_strict(decode<ServerRequest>(bytes), bytes);
    transport::FrameSplitter frames("server", kMaxControlBytes);
    frames.append(bytes);
    for (auto frame = frames.next(); frame.ok() && *frame; frame = frames.next()) {
    }
  }
  EXPECT_GT(accepted, 1000);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace stormo::server
