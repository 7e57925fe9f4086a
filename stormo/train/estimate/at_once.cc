#include <stormo/train/estimate/at_once.h>

#include <dlfcn.h>
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <memory>
#include <new>
#include <string_view>
#include <utility>

#include <stormo/launch/process/cpus.h>
#include <stormo/launch/process/spawn.h>
#include <stormo/train/failure.h>
#include <stormo/transport/memory/wait.h>

namespace stormo::train {
namespace {

using transport::Flag;

/// What a fork writes before its text.
constexpr char kDone = '+', kFailed = '-';

/// Gives the threads of OpenMP back: a fork has none of them, but libgomp would wait for them
/// there.
void end_openmp_threads() {
  using Pause = int (*)(int kind);
  const auto pause = reinterpret_cast<Pause>(::dlsym(RTLD_DEFAULT, "omp_pause_resource_all"));
  constexpr int kHard = 2;
  if (pause != nullptr) pause(kHard);
}

/// A page that forks share.
class SharedFlag {
 public:
  static Result<std::unique_ptr<SharedFlag>> create() {
    void* page =
        ::mmap(nullptr, sizeof(Flag), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return errno_error("map a shared page");
    return std::unique_ptr<SharedFlag>(new SharedFlag(new (page) Flag));
  }
  ~SharedFlag() { ::munmap(flag_, sizeof(Flag)); }
  SharedFlag(const SharedFlag&) = delete;
  SharedFlag& operator=(const SharedFlag&) = delete;
  Flag& operator*() const { return *flag_; }

 private:
  explicit SharedFlag(Flag* flag) : flag_(flag) {}
  Flag* flag_;
};

void bind_to(const launch::CpuList& cpus) {
  if (cpus.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  static_cast<void>(::sched_setaffinity(0, sizeof set, &set));
}

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;  // nobody reads
    text.remove_prefix(static_cast<std::size_t>(n));
  }
}

/// The processes, and what they have written so far.
class Forks {
 public:
  ~Forks() {
    for (const Fork& f : forks_) ::kill(f.pid, SIGKILL);
    for (const Fork& f : forks_) {
      while (::waitpid(f.pid, nullptr, 0) < 0 && errno == EINTR) {
      }
    }
  }

  Status add(const std::function<std::string()>& work) {
    STORMO_ASSIGN_OR_RETURN(launch::Pipe pipe, launch::make_pipe());
    const pid_t parent = ::getpid();
    const pid_t pid = ::fork();
    if (pid < 0) return errno_error("fork");
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(1);
      write_all(pipe.write.get(), work());
      ::_exit(0);  // what the parent has not printed yet is not printed twice
    }
    forks_.push_back({pid, std::move(pipe.read), {}});
    return {};
  }

  /// Until each has written its text and closed its pipe, or one has failed.
  Result<std::vector<std::string>> texts() {
    std::vector<pollfd> open;
    for (const Fork& f : forks_) open.push_back({f.output.get(), POLLIN, 0});
    for (std::size_t left = forks_.size(); left > 0;) {
      if (::poll(open.data(), open.size(), -1) < 0 && errno != EINTR) return errno_error("poll");
      for (std::size_t i = 0; i < open.size(); ++i) {
        if (open[i].revents == 0) continue;
        std::array<char, 4096> buffer{};
        const ssize_t n = ::read(open[i].fd, buffer.data(), buffer.size());
        if (n < 0 && errno == EINTR) continue;
        if (n > 0) {
          forks_[i].text.append(buffer.data(), static_cast<std::size_t>(n));
          continue;
        }
        open[i].fd = -1;  // poll() leaves it out
        --left;
        if (!forks_[i].text.starts_with(kDone)) return failure_of(forks_[i]);
      }
    }
    std::vector<std::string> out;
    for (const Fork& f : forks_) out.push_back(f.text.substr(1));
    return out;
  }

 private:
  struct Fork {
    pid_t pid = 0;
    launch::Descriptor output;
    std::string text;
  };
  static Status failure_of(const Fork& f) {
    if (f.text.starts_with(kFailed)) return Status(Code::kException, f.text.substr(1));
    return Status(Code::kException,
                  "a process that measured was killed; there may be too little "
                  "memory for as many as this host will have ranks");
  }
  std::vector<Fork> forks_;
};

}  // namespace

Result<std::vector<std::string>> at_once(
    int ranks, const std::function<Result<std::string>(int rank, const Meet&)>& work) {
  const launch::Cpus cpus = launch::read_cpus();
  const auto places = launch::bind_ranks(cpus, ranks, launch::BindPolicy::kAuto);
  const transport::WaitPolicy policy = transport::wait_policy(ranks, cpus.usable_cores());
  STORMO_ASSIGN_OR_RETURN(const auto arrived, SharedFlag::create());
  end_openmp_threads();
  std::fflush(nullptr);
  Forks forks;
  for (int r = 0; r < ranks; ++r) {
    STORMO_RETURN_IF_ERROR(forks.add([&, r] {
      bind_to(places[static_cast<std::size_t>(r)]);
      const transport::Health health;
      std::uint32_t target = 0;
      const Meet meet = [&] {
        (**arrived).ring();
        target += static_cast<std::uint32_t>(ranks);
        throw_if_error(transport::wait_for(**arrived, target, {policy, health, Deadline::never()}));
      };
      try {
        const Result<std::string> done = work(r, meet);
        return done.ok() ? kDone + *done : kFailed + done.status().message();
      } catch (...) {
        return kFailed + failure_of_current_exception().message();
      }
    }));
  }
  return forks.texts();
}

}  // namespace stormo::train
