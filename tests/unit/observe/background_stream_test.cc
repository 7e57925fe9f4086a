#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include <stormo/observe/background_stream.h>

namespace stormo::observe {
namespace {

using namespace std::chrono_literals;

class BackgroundStreamTest : public ::testing::Test {
 protected:
  BackgroundStreamTest() {
    std::signal(SIGPIPE, SIG_IGN);
    EXPECT_EQ(::pipe2(pipe_, O_CLOEXEC), 0);
  }
  ~BackgroundStreamTest() override {
    for (const int fd : pipe_) ::close(fd);
    std::signal(SIGPIPE, SIG_DFL);
  }
  std::string read(std::size_t size) {
    std::string text(size, '\0');
    for (std::size_t n = 0; n < size;) {
      const ssize_t got = ::read(pipe_[0], text.data() + n, size - n);
      if (got <= 0) return text.substr(0, n);
      n += static_cast<std::size_t>(got);
    }
    return text;
  }

  int pipe_[2] = {-1, -1};
};

TEST_F(BackgroundStreamTest, WritesInOrder) {
  BackgroundStream stream(pipe_[1]);
  stream << "step " << 1 << '\n' << std::flush;
  stream.append("step 2\n");
  EXPECT_EQ(read(14), "step 1\nstep 2\n");
  EXPECT_TRUE(stream.finish(Deadline::never()));
}

TEST_F(BackgroundStreamTest, AReaderThatDoesNotReadHoldsNobodyUp) {
  BackgroundStream stream(pipe_[1]);
  const std::string much(1u << 20, 'x');  // far more than the pipe takes
  stream << much;
  EXPECT_FALSE(stream.finish(Deadline::after(1ms)));
  EXPECT_EQ(read(much.size()), much) << "a reader that comes back finds all";
  EXPECT_TRUE(stream.finish(Deadline::never()));
}

TEST_F(BackgroundStreamTest, MemoryForAReaderThatDoesNotReadIsBounded) {
  std::string reason;
  BackgroundStream stream(pipe_[1], [&](std::string_view why) { reason = why; });
  const std::string part(BackgroundStream::kMostKept / 8, 'x');
  for (int i = 0; i < 10; ++i) stream << part;
  EXPECT_EQ(reason, "its reader does not read");
}

TEST_F(BackgroundStreamTest, AReaderThatHasGoneIsToldOnce) {
  int told = 0;
  std::string reason;
  BackgroundStream stream(pipe_[1], [&](std::string_view why) {
    ++told;
    reason = why;
  });
  ::close(pipe_[0]);
  pipe_[0] = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  for (int i = 0; i < 3; ++i) {
    stream << "step\n";
    EXPECT_FALSE(stream.finish(Deadline::never()));
  }
  EXPECT_EQ(told, 1);
  EXPECT_EQ(reason, "its reader has gone");
}

TEST_F(BackgroundStreamTest, AFullDiskIsToldAndLaterWritesAreTried) {
  const int file = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
  std::string reason;
  BackgroundStream stream(file, [&](std::string_view why) { reason = why; });
  stream << "step 1\n";
  EXPECT_FALSE(stream.finish(Deadline::never()));
  EXPECT_EQ(reason, "No space left on device");
  ::dup2(pipe_[1], file);  // there is space again
  stream << "step 2\n";
  EXPECT_EQ(read(7), "step 2\n");
  EXPECT_FALSE(stream.finish(Deadline::never())) << "what was lost stays lost";
  ::close(file);
}

}  // namespace
}  // namespace stormo::observe
