#include <stormo/comm/watch/stacks.h>

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <fmt/format.h>
#include <semaphore.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>

#include <stormo/base/file.h>
#include <stormo/base/proc.h>

namespace stormo::comm {
namespace {

namespace fs = std::filesystem;

constexpr int kSignal = SIGURG;  // ignored unless handled: a late one harms nobody
constexpr int kMaxFrames = 48;
constexpr std::size_t kMaxThreads = 64;

/// One thread's answer to the signal.
struct Slot {
  std::atomic<pid_t> thread{0};
  std::array<void*, kMaxFrames> frames{};
  std::atomic<int> num_frames{0};
};

/// What the handler can reach; never freed: a handler may come late. All of them stay reachable, so
/// that a leak checker takes none for a leak.
struct Capture {
  Capture* previous = nullptr;
  std::array<Slot, kMaxThreads> slots;
  sem_t answered{};
};
std::atomic<Capture*> g_capture{nullptr};

pid_t this_thread() { return static_cast<pid_t>(::syscall(SYS_gettid)); }

void walk_own_stack(int) {
  const int saved = errno;
  Capture* capture = g_capture.load(std::memory_order_acquire);
  const pid_t me = this_thread();
  for (std::size_t i = 0; capture != nullptr && i < kMaxThreads; ++i) {
    Slot& slot = capture->slots[i];
    if (slot.thread.load(std::memory_order_acquire) != me) continue;
    slot.num_frames.store(::backtrace(slot.frames.data(), kMaxFrames), std::memory_order_release);
    ::sem_post(&capture->answered);
    break;
  }
  errno = saved;
}

/// Takes the signal for as long as it lives.
class Handler {
 public:
  Handler() {
    std::array<void*, 1> frame{};
    ::backtrace(frame.data(), 1);  // loads the unwinder, which a handler must not
    struct sigaction ours {};
    ours.sa_handler = walk_own_stack;
    ours.sa_flags = SA_RESTART | SA_ONSTACK;
    installed_ = ::sigaction(kSignal, nullptr, &before_) == 0 && before_.sa_handler == SIG_DFL &&
                 ::sigaction(kSignal, &ours, nullptr) == 0;
  }
  ~Handler() {
    if (installed_) ::sigaction(kSignal, &before_, nullptr);
  }
  Handler(const Handler&) = delete;
  bool installed() const { return installed_; }

 private:
  struct sigaction before_ {};
  bool installed_ = false;
};

std::vector<pid_t> thread_ids(const std::string& process) {
  return numbers_in("/proc/" + process + "/task");
}

/// Of the state of a process or thread; '?': there is none.
char letter_of(const fs::path& folder) {
  const auto state = process_state(folder);
  return state ? state->letter : '?';
}

ThreadState look_at(const std::string& process, pid_t thread) {
  const fs::path folder = fmt::format("/proc/{}/task/{}", process, thread);
  ThreadState s;
  s.id = thread;
  s.name = first_line(folder / "comm");
  s.state = letter_of(folder);
  s.waits_in = first_line(folder / "wchan");
  if (s.waits_in == "0") s.waits_in.clear();
  s.system_call = first_line(folder / "syscall");
  return s;
}

/// "stormo::train::Runner::step(double)+0x1f", "libc.so.6+0x9d2a1".
std::string symbol_of(void* address) {
  Dl_info info{};
  if (::dladdr(address, &info) == 0 || info.dli_fname == nullptr) {
    return fmt::format("{}", address);
  }
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  if (info.dli_sname == nullptr) {
    return fmt::format("{}+{:#x}", fs::path(info.dli_fname).filename().string(),
                       at - reinterpret_cast<std::uintptr_t>(info.dli_fbase));
  }
  int failed = 0;
  const std::unique_ptr<char, decltype(&std::free)> plain(
      abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &failed), std::free);
  return fmt::format("{}+{:#x}", failed == 0 ? plain.get() : info.dli_sname,
                     at - reinterpret_cast<std::uintptr_t>(info.dli_saddr));
}

void walk_stacks(std::vector<ThreadState>& threads, Duration at_most) {
  const Handler handler;
  if (!handler.installed()) return;
  auto* capture = new Capture;  // never freed, see above
  capture->previous = g_capture.load(std::memory_order_acquire);
  ::sem_init(&capture->answered, 0, 0);
  const std::size_t n = std::min(threads.size(), kMaxThreads);
  for (std::size_t i = 0; i < n; ++i) {
    capture->slots[i].thread.store(threads[i].id, std::memory_order_release);
  }
  g_capture.store(capture, std::memory_order_release);
  std::size_t asked = 0;
  for (std::size_t i = 0; i < n; ++i) {
    asked += ::syscall(SYS_tgkill, ::getpid(), threads[i].id, kSignal) == 0 ? 1 : 0;
  }
  timespec by{};
  ::clock_gettime(CLOCK_REALTIME, &by);
  const auto ns = by.tv_nsec + at_most.count();
  by.tv_sec += ns / 1'000'000'000;
  by.tv_nsec = ns % 1'000'000'000;
  for (std::size_t answered = 0; answered < asked;) {
    if (::sem_timedwait(&capture->answered, &by) == 0) {
      ++answered;
    } else if (errno != EINTR) {
      break;
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    const Slot& slot = capture->slots[i];
    const int frames = slot.num_frames.load(std::memory_order_acquire);
    // the handler and its trampoline say nothing about the thread
    for (int f = 2; f < frames; ++f) {
      threads[i].stack.push_back(symbol_of(slot.frames[static_cast<std::size_t>(f)]));
    }
  }
}

}  // namespace

std::vector<ThreadState> threads_of_this_process(Duration at_most) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  std::vector<ThreadState> threads;
  for (const pid_t id : thread_ids("self")) {
    if (id != this_thread()) threads.push_back(look_at("self", id));
  }
  walk_stacks(threads, at_most);
  return threads;
}

std::vector<ThreadState> threads_of_process(pid_t pid) {
  std::vector<ThreadState> threads;
  const std::string process = std::to_string(pid);
  for (const pid_t id : thread_ids(process)) threads.push_back(look_at(process, id));
  return threads;
}

std::string describe_process(pid_t pid) {
  const char state = letter_of(fmt::format("/proc/{}", pid));
  switch (state) {
    case 'T':
    case 't': return "its process is stopped (SIGSTOP or a debugger)";
    case 'Z':
    case 'X': return "its process has ended";
    case '?': return "its process is gone";
    case 'D': return "its process waits for a device or a network file system";
    default: return fmt::format("its process is there (state {}), but says nothing", state);
  }
}

std::string process_namespace() {
  std::error_code ignored;
  const fs::path pids = fs::read_symlink("/proc/self/ns/pid", ignored);
  return first_line("/proc/sys/kernel/random/boot_id") + " " + pids.string();
}

}  // namespace stormo::comm
