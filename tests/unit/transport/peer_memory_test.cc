#include <stormo/transport/shm/peer_memory.h>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

namespace stormo::transport {
namespace {

constexpr std::size_t kBytes = 3 << 20;

/// A child process with a shared "arena" at another address than ours, and private memory.
class Peer {
 public:
  Peer() {
    shared_ = static_cast<std::byte*>(
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    std::array<int, 2> ends{};
    EXPECT_EQ(pipe(ends.data()), 0);
    pid_ = fork();
    if (pid_ == 0) live(ends[1]);
    EXPECT_EQ(read(ends[0], &addresses_, sizeof addresses_),
              static_cast<ssize_t>(sizeof addresses_));
    close(ends[0]);
    close(ends[1]);
  }
  ~Peer() {
    kill();
    munmap(shared_, kBytes);
  }
  Peer(const Peer&) = delete;

  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  PeerMemory memory() const { return {shared_, kBytes, {pid_, addresses_.arena}}; }
  /// The child's private memory as memory() wants it addressed.
  std::byte* there(std::size_t offset) const {
    return reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(shared_) +
                                        (addresses_.heap - addresses_.arena) + offset);
  }
  std::byte* shared() const { return shared_; }

 private:
  struct Addresses {
    std::uintptr_t arena = 0;
    std::uintptr_t heap = 0;
  };
  [[noreturn]] void live(int to) const {
    void* const moved = mremap(shared_, kBytes, kBytes, MREMAP_MAYMOVE | MREMAP_FIXED,
                               static_cast<std::byte*>(mmap(nullptr, 2 * kBytes, PROT_NONE,
                                                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) +
                                   4096);
    std::vector<char> heap(kBytes);
    for (std::size_t i = 0; i < kBytes; ++i) heap[i] = static_cast<char>(i % 127);
    const Addresses mine{reinterpret_cast<std::uintptr_t>(moved),
                         reinterpret_cast<std::uintptr_t>(heap.data())};
    if (write(to, &mine, sizeof mine) < 0) _exit(1);
    for (;;) pause();
  }

  std::byte* shared_ = nullptr;
  pid_t pid_ = 0;
  Addresses addresses_;
};

TEST(PeerMemory, ReadsAndWritesWhatIsNotMapped) {
  const Peer peer;
  const PeerMemory memory = peer.memory();
  EXPECT_TRUE(memory.is_mapped(peer.shared()));
  EXPECT_TRUE(memory.is_mapped(peer.shared() + kBytes - 1));
  EXPECT_FALSE(memory.is_mapped(peer.shared() + kBytes));
  EXPECT_FALSE(memory.is_mapped(peer.there(0)));
  std::vector<char> got(kBytes - 5);
  ASSERT_TRUE(memory.read(got.data(), peer.there(5), got.size()).ok());
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], static_cast<char>((i + 5) % 127));
  const char text[] = "written by another process";
  ASSERT_TRUE(memory.write(peer.there(kBytes / 2), text, sizeof text).ok());
  ASSERT_TRUE(memory.read(got.data(), peer.there(kBytes / 2), sizeof text).ok());
  EXPECT_STREQ(got.data(), text);
}

TEST(PeerMemory, SaysWhetherThePeerIsGoneOrTheAddressWrong) {
  Peer peer;
  const PeerMemory memory = peer.memory();
  char byte = 0;
  const auto* const nowhere = reinterpret_cast<const void*>(
      reinterpret_cast<std::uintptr_t>(peer.there(0)) + (std::uintptr_t{1} << 46));
  EXPECT_EQ(memory.read(&byte, nowhere, 1).code(), Code::kInvalidArgument);
  peer.kill();
  EXPECT_EQ(memory.read(&byte, peer.there(0), 1).code(), Code::kPeerLost);
  EXPECT_EQ(memory.write(peer.there(0), &byte, 1).code(), Code::kPeerLost);
}

TEST(PeerMemory, SaysThatTheKernelDoesNotLetUs) {
  if (::geteuid() != 0) GTEST_SKIP() << "root: becoming another user needs root";
  const Peer peer;
  const pid_t stranger = fork();
  if (stranger == 0) {
    if (setuid(65534) != 0) _exit(2);
    char byte = 0;
    const Status s = peer.memory().read(&byte, peer.there(0), 1);
    const bool named = s.message().find("Operation not permitted") != std::string::npos;
    _exit(s.code() == Code::kIo && named ? 0 : 1);
  }
  int outcome = -1;
  waitpid(stranger, &outcome, 0);
  EXPECT_EQ(outcome, 0);
}

}  // namespace
}  // namespace stormo::transport
