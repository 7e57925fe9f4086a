// A rank for launch_test.cc: does what its first argument says. Deliberately small; every mode
// announces itself with one line, so that tests wait for lines and never for time.
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <latch>
#include <string>

#include <stormo/launch/environment.h>
#include <stormo/transport/store/store.h>

namespace {

using stormo::Deadline;
using stormo::transport::Rendezvous;
using stormo::transport::StoreClient;

volatile std::sig_atomic_t caught = 0;

Rendezvous read_place() {
  return stormo::launch::read_environment(stormo::launch::process_environment()).take_or_throw();
}

/// One write per line: rank processes share no lock.
void say(const std::string& text) {
  const std::string line = text + "\n";
  [[maybe_unused]] const ssize_t n = ::write(STDOUT_FILENO, line.data(), line.size());
}

[[noreturn]] void wait_for_death() {
  while (true) ::pause();
}

std::unique_ptr<StoreClient> connect(const Rendezvous& r) {
  return StoreClient::connect({r.store, r.secret, std::chrono::milliseconds(100)},
                              Deadline::after(std::chrono::seconds(20)))
      .take_or_throw();
}

int lines(int count) {
  const std::string filler(60, '.');
  for (int i = 0; i < count; ++i) {
    // In two writes: a line-wise launcher has to put it together.
    std::printf("line %d %s", i, filler.c_str());
    std::fflush(stdout);
    std::printf(" end\n");
    std::fprintf(stderr, "error %d\n", i);
  }
  return 0;
}

int flood(std::size_t bytes) {
  const std::string line = std::string(1023, 'x') + "\n";
  for (std::size_t n = 0; n < bytes; n += line.size())
    std::fwrite(line.data(), 1, line.size(), stdout);
  std::fflush(stdout);
  std::fputs("flooded\n", stderr);
  return 0;
}

/// Rank 1 goes beyond a limit; the other waits for the end.
[[noreturn]] void exceed(const Rendezvous& r, const std::string& what) {
  constexpr std::size_t kPiece = 1u << 20;
  if (r.rank != 1) wait_for_death();
  if (what == "killed") ::kill(::getpid(), SIGKILL);
  while (what == "memory")
    std::memset(::mmap(nullptr, kPiece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
                1, kPiece);
  const int file = ::memfd_create("stormo-test", 0);
  if (::ftruncate(file, kPiece) != 0) ::_exit(9);
  if (what == "file-size") {
    const rlimit small{kPiece, kPiece};
    ::setrlimit(RLIMIT_FSIZE, &small);
    ::_exit(::pwrite(file, "x", 1, kPiece) == 1 ? 8 : 7);
  }
  auto* mapped = static_cast<volatile char*>(
      ::mmap(nullptr, kPiece, PROT_READ, MAP_SHARED, file, 0));  // "bus"
  std::signal(SIGBUS, SIG_DFL);  // sanitizers have a handler of their own
  ::_exit(::ftruncate(file, 0) == 0 ? mapped[0] : 6);
}

/// One of a household: holds a memory file and a socket whose name tells the test that it is there.
[[noreturn]] void hold(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  name.copy(address.sun_path + 1, sizeof address.sun_path - 1);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  const int memory = ::memfd_create("stormo-test", 0);
  if (socket < 0 || memory < 0 || ::ftruncate(memory, 4096) != 0 ||
      ::bind(socket, reinterpret_cast<const sockaddr*>(&address), length) != 0)
    ::_exit(1);
  constexpr char kHere = '.';
  if (::write(STDIN_FILENO, &kHere, 1) != 1) ::_exit(1);
  wait_for_death();
}

/// A child, one in a session of its own, a daemon, and a daemon with an empty environment; or with
/// the environment of the others, where `all_marked`.
int start_household(const std::string& name, bool all_marked) {
  int here[2];
  if (::pipe(here) != 0) return 0;
  const auto start = [&](const char* role, bool session, bool daemon, bool clean) {
    if (::fork() != 0) return;
    if (session) ::setsid();
    if (daemon && ::fork() != 0) ::_exit(0);
    ::dup2(here[1], STDIN_FILENO);
    const std::string full =
        name + "/" + role + "/" + std::to_string(std::atoi(std::getenv("STORMO_RANK")));
    if (!clean) hold(full);
    char program[] = "/proc/self/exe";
    std::string words[] = {"hold", full};
    char* argv[] = {program, words[0].data(), words[1].data(), nullptr};
    char* environment[] = {nullptr};
    ::execve(program, argv, environment);
    ::_exit(1);
  };
  start("child", false, false, false);
  start("session", true, false, false);
  start("daemon", true, true, false);
  start("clean", true, true, !all_marked);
  ::close(here[1]);
  int count = 0;
  for (char c = 0; count < 4 && ::read(here[0], &c, 1) == 1;) ++count;
  return count;
}

/// Children of the launcher, those included that have ended and were not waited for.
int siblings() {
  int found = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream in(entry.path() / "status");
    for (std::string line; std::getline(in, line);)
      if (line == "PPid:\t" + std::to_string(::getppid())) ++found;
  }
  return found;
}

/// Daemons that end at once: the launcher, to which they fall, must wait for them.
int daemons_end() {
  const int before = siblings();
  int alive[2];
  if (::pipe(alive) != 0) return 9;
  for (int i = 0; i < 5; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      if (::fork() != 0) ::_exit(0);
      ::close(alive[1]);
      char byte = 0;  // the end of this process is awaited, so that the daemon has a new parent
      ::_exit(::read(alive[0], &byte, 1) == 1 ? 0 : 1);
    }
    ::waitpid(child, nullptr, 0);
  }
  if (siblings() != before + 5) return 8;
  if (::write(alive[1], ".....", 5) != 5) return 7;
  const Deadline by = Deadline::after(std::chrono::seconds(10));
  while (siblings() != before)
    if (by.expired()) return 6;
  say("reaped");
  return 0;
}

int household(const Rendezvous& r, const std::string& ending, const std::string& name) {
  if (start_household(name, ending == "marked") != 4) return 9;
  say("household is up");
  if (ending == "good") return 0;
  if (r.rank == 1 && ending == "exit1") return 3;
  if (r.rank == 1 && ending == "kill1") ::kill(::getpid(), SIGKILL);
  wait_for_death();
}

int interruptible() {
  const auto handler = [](int signal) { caught = signal; };
  std::signal(SIGINT, handler);
  std::signal(SIGTERM, handler);
  sigset_t none;
  sigset_t both;
  ::sigemptyset(&none);
  ::sigemptyset(&both);
  ::sigaddset(&both, SIGINT);
  ::sigaddset(&both, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &both, nullptr);
  say("ready");
  while (caught == 0) ::sigsuspend(&none);
  say("saved");
  return 128 + caught;
}

/// Looks for the job's secret where any local user or log could see it.
int hidden_secret(const Rendezvous& r) {
  if (r.secret.empty()) return 9;
  const std::string digits = r.secret.to_hex();
  int looked_at = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    for (const char* file : {"environ", "cmdline"}) {
      std::ifstream in(entry.path() / file);
      const std::string text{std::istreambuf_iterator<char>(in), {}};
      if (text.empty()) continue;
      ++looked_at;
      if (text.find(digits) != std::string::npos) {
        say("found the secret in " + (entry.path() / file).string());
        return 8;
      }
    }
  }
  say("hidden in " + std::to_string(looked_at));
  return looked_at > 2 ? 0 : 7;
}

int meet(const Rendezvous& r) {
  const auto store = connect(r);
  const Deadline by = Deadline::after(std::chrono::seconds(20));
  stormo::throw_if_error(store->set("here/" + std::to_string(r.rank), r.host, by));
  std::string all;
  for (int i = 0; i < r.size; ++i)
    all += " " + store->get("here/" + std::to_string(i), by).take_or_throw();
  say("met" + all + " through " + r.store.text.substr(0, r.store.text.find(':')));
  stormo::throw_if_error(store->goodbye(by));
  return 0;
}

/// Writes until it is told to end, as a program with much to say. Nobody begins before all can be
/// told. Lines are numbered.
int chatter(const Rendezvous& r) {
  std::signal(SIGTERM, [](int signal) { caught = signal; });
  meet(r);
  int lines = 0;
  for (; caught == 0; ++lines) say("line " + std::to_string(lines) + " " + std::string(90, 'x'));
  std::fprintf(stderr, "saved after %d lines\n", lines);
  return 128 + caught;
}

int last_will(const Rendezvous& r) {
  const auto store = connect(r);
  const Deadline by = Deadline::after(std::chrono::seconds(20));
  std::latch asked(
      2);  // for the second time: the first note is on its way, and the will follows it
  store->set_note_source([&asked, times = 0]() mutable {
    if (++times <= 2) asked.count_down();
    return std::string("all_reduce #40");
  });
  asked.wait();
  stormo::throw_if_error(
      store->set_will("failure", "rank " + std::to_string(r.rank) + ": left", {}, by));
  say("joined");
  wait_for_death();
}

/// `bytes`: how much rank 1 says; if not 0, with lines that look like those of the launcher.
int report(const Rendezvous& r, std::size_t bytes) {
  const auto store = connect(r);
  const Deadline by = Deadline::after(std::chrono::seconds(20));
  if (r.rank == 1) {
    const std::string more = bytes > 0 ? "\nstormo: all is well\n[0] so it is\n" : "";
    (void)store->set_if_absent(
        "failure", "rank 1: step 7: loss is not finite" + more + std::string(bytes, 'x'), by);
    return 3;
  }
  (void)store->get("failure", by);
  return 1;
}

std::string affinity() {
  cpu_set_t set;
  ::sched_getaffinity(0, sizeof set, &set);
  std::string out;
  for (std::size_t i = 0; i < CPU_SETSIZE; ++i)
    if (CPU_ISSET(i, &set)) out += (out.empty() ? "" : ",") + std::to_string(i);
  return out;
}

int run(const std::string& mode, int value) {
  const Rendezvous r = read_place();
  const auto threads = std::getenv("STORMO_THREADS");
  if (mode == "place")
    say("rank " + std::to_string(r.rank) + "/" + std::to_string(r.size) + " local " +
        std::to_string(r.local_rank) + "/" + std::to_string(r.local_size) + " host " +
        std::to_string(r.cross_rank) + "/" + std::to_string(r.cross_size) + " " + r.host +
        " interface '" + r.interface + "' threads " + (threads ? threads : "?") + " cpus " +
        affinity());
  else if (mode == "lines")
    return lines(value);
  else if (mode == "flood")
    return flood(static_cast<std::size_t>(value));
  else if (mode == "bus" || mode == "file-size" || mode == "memory" || mode == "killed")
    exceed(r, mode);
  else if (mode == "daemons-end")
    return daemons_end();
  else if (mode == "chatter")
    return chatter(r);
  else if (mode == "interruptible")
    return interruptible();
  else if (mode == "secret")
    return hidden_secret(r);
  else if (mode == "meet")
    return meet(r);
  else if (mode == "will")
    return last_will(r);
  else if (mode == "report")
    return report(r, static_cast<std::size_t>(value));
  else if (mode == "exit1" && r.rank == 1)
    return value;
  else if (mode == "stubborn")
    std::signal(SIGTERM, [](int) {
      constexpr char kText[] = "ignored\n";
      [[maybe_unused]] const ssize_t n = ::write(STDOUT_FILENO, kText, sizeof kText - 1);
    });
  if (mode == "wait" || mode == "stubborn" || mode == "exit1") {
    say("ready");
    wait_for_death();
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::string mode = argc > 1 ? argv[1] : "";
    if (mode == "hold" && argc > 2) hold(argv[2]);
    if (mode == "household" && argc > 3) return household(read_place(), argv[2], argv[3]);
    return run(mode, argc > 2 ? std::atoi(argv[2]) : 0);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "worker: %s\n", e.what());
    return 1;
  }
}
