// Who moves messages: callers, a thread, several at once, and how all of it ends.
#include <poll.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <iterator>
#include <string>
#include <thread>

#include "tests/unit/comm/ranks.h"
#include "tests/unit/comm/wired_mailboxes.h"

namespace stormo::comm::test {
namespace {

using Bytes = std::vector<std::uint8_t>;
constexpr std::size_t kShort = 100;
constexpr std::size_t kLong = 3 << 20;  // three pieces

Deadline soon() { return Deadline::after(std::chrono::seconds(10)); }

/// A message of a mailbox's caller, which keeps the list of its buffers.
struct Message {
  Message(OperationKind kind, Bytes& bytes, Rank peer, std::uint32_t tag) : buffer(bytes) {
    request.kind = kind;
    request.in = request.out = {&buffer, 1};
    request.root = peer;
    request.tag = tag;
  }
  Buffer buffer;
  Request request;
};
Work send_async(Mailbox& m, Bytes& bytes, Rank to, std::uint32_t tag = 1) {
  return m.submit(Message(OperationKind::kSend, bytes, to, tag).request);
}
Work recv_async(Mailbox& m, Bytes& bytes, Rank from, std::uint32_t tag = 1) {
  return m.submit(Message(OperationKind::kReceive, bytes, from, tag).request);
}
Status send(Mailbox& m, Bytes& bytes, Rank to, std::uint32_t tag = 1, Deadline by = soon()) {
  return m.run(Message(OperationKind::kSend, bytes, to, tag).request, by);
}
Status recv(Mailbox& m, Bytes& bytes, Rank from, std::uint32_t tag = 1, Deadline by = soon()) {
  return m.run(Message(OperationKind::kReceive, bytes, from, tag).request, by);
}

/// A test's thread waits until another has come here.
class Gate {
 public:
  void open() { promise_.set_value(); }
  void wait() const {
    EXPECT_EQ(opened_.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  }

 private:
  std::promise<void> promise_;
  std::shared_future<void> opened_ = promise_.get_future().share();
};

std::ptrdiff_t num_threads() {
  using Iterator = std::filesystem::directory_iterator;
  return std::distance(Iterator("/proc/self/task"), Iterator());
}

TEST(MailboxThreads, CallsThatBlockNeedNone) {
  std::thread([] {}).join();  // sanitizers start theirs with the first one
  const std::ptrdiff_t before = num_threads();
  WiredMailboxes m;
  std::thread other([&] {
    for (const std::size_t size : {kShort, kLong}) {
      Bytes in(size);
      for (int i = 0; i < 50; ++i) EXPECT_OK(recv(*m.of[1], in, 0));
      EXPECT_EQ(num_threads(), before + 1);
    }
  });
  for (const std::size_t size : {kShort, kLong}) {
    Bytes out(size);
    for (int i = 0; i < 50; ++i) EXPECT_OK(send(*m.of[0], out, 1));
  }
  other.join();
  EXPECT_EQ(num_threads(), before);
}

TEST(MailboxThreads, WhatNobodyWaitsForIsMovedByOne) {
  WiredMailboxes m;
  Bytes out(kLong, 7), in(kLong);
  Work received = recv_async(*m.of[1], in, 0);
  Work sent = send_async(*m.of[0], out, 1);
  std::promise<Status> told;
  received.then([&](const Status& outcome) { told.set_value(outcome); });
  auto outcome = told.get_future();
  ASSERT_EQ(outcome.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  EXPECT_OK(outcome.get());
  EXPECT_EQ(in, out);
  EXPECT_OK(sent.wait(soon()));
}

/// Callers of both ends, which block, wait, or only look.
TEST(MailboxThreads, ManyCallAtOnce) {
  WiredMailboxes m;
  constexpr std::uint32_t kThreads = 3;
  constexpr int kMessages = 200;
  std::vector<std::thread> threads;
  const auto size_of = [](int i) { return i % 20 == 7 ? kLong / 3 + 1 : kShort; };
  for (std::uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::vector<Bytes> out;
      for (int i = 0; i < kMessages; ++i)
        out.emplace_back(size_of(i), static_cast<std::uint8_t>(i));
      std::vector<Work> works;
      for (int i = 0; i < kMessages; ++i) {
        Bytes& data = out[static_cast<std::size_t>(i)];
        if (i % 3 == 0) {
          EXPECT_OK(send(*m.of[0], data, 1, t));
        } else {
          works.push_back(send_async(*m.of[0], data, 1, t));
        }
      }
      for (Work& w : works) EXPECT_OK(w.wait(soon()));
    });
    threads.emplace_back([&, t] {
      for (int i = 0; i < kMessages; ++i) {
        Bytes in(size_of(i));
        if (i % 4 == 0) {
          EXPECT_OK(recv(*m.of[1], in, 0, t));
        } else {
          Work received = recv_async(*m.of[1], in, 0, t);
          while (i % 4 == 1 && !received.test()) std::this_thread::yield();
          EXPECT_OK(received.wait(soon()));
        }
        EXPECT_EQ(in, Bytes(size_of(i), static_cast<std::uint8_t>(i)));
      }
    });
  }
  for (std::thread& t : threads) t.join();
  for (const auto& mailbox : m.of) EXPECT_OK(mailbox->flush(Deadline::after(Duration::zero())));
}

/// How often threads of this process have slept.
long num_sleeps() {
  long all = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(task.path() / "status");
    for (std::string word; status >> word;) {
      long number = 0;
      if (word == "voluntary_ctxt_switches:" && status >> number) all += number;
    }
  }
  return all;
}

/// A thread has been started, and leaves what is under way to a caller that waits for long.
TEST(MailboxThreads, OneRestsWhileACallerMovesMessages) {
  WiredMailboxes m;
  Bytes in(kShort), out(kShort), never(kShort);
  Work forgotten = recv_async(*m.of[1], never, 0, 2);  // so that the thread has something to do
  Work received = recv_async(*m.of[1], in, 0, 1);
  std::thread caller([&] { EXPECT_OK(received.wait(soon())); });
  ::poll(nullptr, 0, 100);
  const long before = num_sleeps();
  ::poll(nullptr, 0, 1000);
  EXPECT_LT(num_sleeps() - before, 300);
  EXPECT_OK(send(*m.of[0], out, 1, 1));
  caller.join();
  // it goes on when the caller has what it wanted
  EXPECT_OK(send(*m.of[0], out, 1, 2));
  for (const Deadline by = soon(); !forgotten.test() && !by.expired();) std::this_thread::yield();
  EXPECT_TRUE(forgotten.test());
}

/// For a message that its sender has ended: nothing comes any more, and nobody waits.
TEST(MailboxThreads, AMessageThatItsSenderHasEndedStaysPending) {
  WiredMailboxes m;
  Gate copied;
  m.wire->on_bring = [&](std::size_t) {
    copied.open();
    return Status(Code::kCancelled, "rank 0 has ended its sends");
  };
  Bytes out(kLong), in(kLong), small(kShort), small_in(kShort);
  Work received = recv_async(*m.of[1], in, 0, 1);
  Work sent = send_async(*m.of[0], out, 1, 1);
  copied.wait();
  EXPECT_OK(send(*m.of[0], small, 1, 2));
  EXPECT_OK(recv(*m.of[1], small_in, 0, 2));
  EXPECT_FALSE(received.test());
  EXPECT_FALSE(m.health[1]->failed());
  m.of[1].reset();
  EXPECT_EQ(received.wait(soon()).code(), Code::kCancelled);
}

/// It passes between two pieces.
TEST(MailboxThreads, AShortMessageIsNotHeldUpByALongOne) {
  WiredMailboxes m;
  Gate passed;
  m.wire->on_bring = [&](std::size_t offset) {
    if (offset > 0) passed.wait();
    return Status();
  };
  Bytes large(kLong), large_in(kLong), small(kShort), small_in(kShort);
  Work received = recv_async(*m.of[1], large_in, 0, 1);
  Work sent = send_async(*m.of[0], large, 1, 1);
  EXPECT_OK(send(*m.of[0], small, 1, 2));
  EXPECT_OK(recv(*m.of[1], small_in, 0, 2));
  EXPECT_FALSE(received.test());
  passed.open();
  EXPECT_OK(received.wait(soon()));
  EXPECT_OK(sent.wait(soon()));
}

/// The sender's deadline passes while its message is copied, and it may change the bytes then. The
/// receiver does not know yet that the group has failed.
TEST(MailboxThreads, AMessageThatItsSenderHasGivenUpIsNone) {
  WiredMailboxes m;
  m.are_told = false;
  Gate begun, given_up;
  m.wire->on_bring = [&](std::size_t offset) {
    if (offset == 0) begun.open();
    given_up.wait();
    return Status();
  };
  Bytes out(kLong / 3), in(kLong / 3);  // one piece
  Work received = recv_async(*m.of[1], in, 0);
  const auto deadline = Deadline::after(std::chrono::milliseconds(100));
  EXPECT_EQ(send(*m.of[0], out, 1, 1, deadline).code(), Code::kDeadlineExceeded);
  begun.wait();
  EXPECT_FALSE(received.test()) << "its memory is written";
  given_up.open();
  for (const Deadline by = soon(); m.wire->num_brought == 0 && !by.expired();) {
    std::this_thread::yield();
  }
  const Status early = received.wait(Deadline::after(std::chrono::milliseconds(50)));
  EXPECT_FALSE(received.test()) << early.to_string();
  m.health[1]->fail({Code::kPeerLost, "rank 0 has failed"});
  EXPECT_EQ(received.wait(soon()).code(), Code::kPeerLost);
}

/// Telling the others takes long. Meanwhile others call, and wait; then all is destroyed.
TEST(MailboxThreads, AllThatIsPendingEndsWhenTheGroupFails) {
  for (const bool destroys : {false, true}) {
    WiredMailboxes m;
    Gate failing, go_on;
    m.on_give_up = [&] {
      failing.open();
      go_on.wait();
    };
    Bytes in(kShort), more(kShort), late(kShort);
    Work pending = recv_async(*m.of[1], in, 0, 1);
    const auto expect_failed = [&](const Status& outcome) {
      const bool fits =
          outcome.code() == Code::kCorrupt || (destroys && outcome.code() == Code::kCancelled);
      EXPECT_TRUE(fits) << outcome.to_string();
    };
    std::thread blocked([&] { expect_failed(recv(*m.of[1], more, 0, 2)); });
    while (m.activities.running().empty()) std::this_thread::yield();
    {
      const std::lock_guard lock(m.wire->mutex);
      m.wire->broken = Status(Code::kCorrupt, "broken");
    }
    m.wire->changed.notify_all();
    failing.wait();
    Work posted = recv_async(*m.of[1], late, 0, 3);
    EXPECT_FALSE(posted.test());
    std::thread destroyer([&] {
      if (destroys) m.of[1].reset();
    });
    if (destroys) expect_failed(pending.wait(soon()));  // though the failure is not told yet
    go_on.open();
    for (Work* w : {&pending, &posted}) expect_failed(w->wait(soon()));
    destroyer.join();
    blocked.join();
  }
}

/// A copy is under way, callers wait with a Work, and a function posts again what has ended, as one
/// of a server does: too late.
TEST(MailboxThreads, TheEndWaitsForWhoIsInside) {
  for (int round = 0; round < 20; ++round) {
    WiredMailboxes m;
    Gate copying;
    std::atomic<bool> has_begun = false;
    m.wire->on_bring = [&](std::size_t) {
      if (!has_begun.exchange(true)) copying.open();
      const Deadline end = Deadline::after(std::chrono::milliseconds(1));
      while (!end.expired()) std::this_thread::yield();
      return Status();
    };
    Bytes out(kLong), in(kLong), never(kShort);
    Work received = recv_async(*m.of[1], in, 0, 1);
    Work waiting = recv_async(*m.of[1], never, 0, 2);
    Work sent = send_async(*m.of[0], out, 1, 1);
    Bytes request(kShort);
    int num_posted = 0;
    Mailbox& server = *m.of[1];
    const std::function<void(const Status&)> serve = [&](const Status&) {
      if (++num_posted < 3) recv_async(server, request, 0, 3).then(serve);
    };
    recv_async(server, request, 0, 3).then(serve);
    std::vector<std::thread> threads;
    for (Work* w : {&received, &waiting}) {
      threads.emplace_back([w] {
        const Status outcome = w->wait(soon());
        EXPECT_TRUE(outcome.ok() || outcome.code() == Code::kCancelled) << outcome.to_string();
      });
    }
    copying.wait();
    m.of[1].reset();
    for (std::thread& t : threads) t.join();
    EXPECT_TRUE(received.test());
    EXPECT_EQ(num_posted, 3);
  }
}

}  // namespace
}  // namespace stormo::comm::test
