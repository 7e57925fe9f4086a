// What a reader gets of the launcher's output that reads late, in part, or not at all.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <string>

#include <stormo/launch/process/output.h>
#include <stormo/launch/process/spawn.h>

namespace stormo::launch {
namespace {

/// A queue and its reader, between them a pipe of one page.
class Reader {
 public:
  Reader() {
    ::fcntl(pipe_.write.get(), F_SETPIPE_SZ, 4096);
    ::fcntl(pipe_.read.get(), F_SETFL, O_NONBLOCK);
  }
  OutputQueue& queue() { return queue_; }
  /// What the pipe holds now.
  std::string read() {
    std::array<char, 8192> bytes{};
    const ssize_t n = ::read(pipe_.read.get(), bytes.data(), bytes.size());
    return n > 0 ? std::string(bytes.data(), static_cast<std::size_t>(n)) : "";
  }
  /// Until nothing is pending.
  std::string read_all() {
    std::string all = read();
    while (queue_.pending() > 0) {
      EXPECT_TRUE(loop_->run_once(Deadline::after(std::chrono::seconds(15))).ok());
      all += read();
    }
    return all + read();
  }

 private:
  std::unique_ptr<EventLoop> loop_ = EventLoop::create().take_or_throw();
  Pipe pipe_ = make_pipe().take_or_throw();
  OutputQueue queue_{*loop_, pipe_.write.get()};
};

std::string line(char c, std::size_t length) { return std::string(length, c) + "\n"; }

TEST(OutputQueue, APipeHoldsWholeLines) {
  Reader reader;
  const std::string all = line('a', 1500) + line('b', 1500) + line('c', 1500) + line('d', 6000);
  reader.queue().push(all);
  std::string seen = reader.read();
  EXPECT_EQ(seen, line('a', 1500) + line('b', 1500));
  seen += reader.read_all();
  EXPECT_EQ(seen, all);
  EXPECT_FALSE(reader.queue().lost());
}

TEST(OutputQueue, WhatIsNotReadIsDroppedInWholeLines) {
  Reader reader;
  reader.queue().push(line('a', 4000) + line('b', 4000) + "the rest of th");
  reader.queue().abandon();
  reader.queue().push("is line is dropped, too\nthe next is not\n");
  EXPECT_EQ(reader.read_all(), line('a', 4000) + "the next is not\n");
  EXPECT_TRUE(reader.queue().lost());
}

TEST(OutputQueue, ALineThatWasCutIsNotGluedToTheNextOne) {
  Reader reader;
  reader.queue().push(line('a', 6000));
  reader.queue().abandon();
  reader.queue().push("next\n");
  EXPECT_EQ(reader.read_all(), line('a', 4096) + "next\n");
}

TEST(OutputQueue, BeyondItsBoundItDropsWholeLines) {
  Reader reader;
  reader.queue().bound(5000);
  const std::string kept = line('a', 4000) + line('b', 6000);
  reader.queue().push(kept + "this line is st");  // of which the bound is exceeded
  reader.queue().push("ill whole\nnot this o");
  reader.queue().push("ne\nnor this one\n");
  EXPECT_EQ(reader.read_all(), kept + "this line is still whole\n");
  reader.queue().push("and again\n");
  EXPECT_EQ(reader.read_all(), "and again\n");
}

}  // namespace
}  // namespace stormo::launch
