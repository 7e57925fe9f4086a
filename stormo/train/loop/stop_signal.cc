#include <stormo/train/loop/stop_signal.h>

#include <unistd.h>

#include <atomic>
#include <mutex>

#include <stormo/protocol/supervisor.h>
#include <stormo/train/loop/no_launcher.h>

namespace stormo::train {
namespace {

// Signal handlers know nothing but the process: this state cannot belong to an object.
std::atomic<int> g_received{0};
std::atomic<bool> g_usr1{false};
std::atomic<int> g_members{0};     // StopSignals of an elastic job
std::atomic<pid_t> g_launcher{0};  // the parent when the first of them was made; 0: there is none
bool g_has_launcher = true;
std::atomic<StopSignal::Leave> g_leave{StopSignal::Leave::kNotAsked};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free &&
              std::atomic<StopSignal::Leave>::is_always_lock_free);

struct Handled {
  int users = 0;
  struct sigaction before {};
};
std::mutex g_mutex;
std::array<Handled, StopSignal::kSignals.size()> g_handled;
int g_alive = 0;

// The launcher is the parent; kill() for all ranks has no value.
StopSignal::Leave leave_of(const siginfo_t& info) {
  using Leave = StopSignal::Leave;
  if (g_members == 0 || info.si_signo != SIGTERM) return Leave::kNotAsked;
  const pid_t parent = ::getppid();
  if (parent != g_launcher) return Leave::kNotAsked;  // nobody is left who could tell all
  if (info.si_pid != parent) return Leave::kByOthers;
  const bool is_marked =
      info.si_code == SI_QUEUE && info.si_value.sival_int == protocol::kLeaveMark;
  return is_marked ? Leave::kByLauncher : Leave::kNotAsked;
}

void note(int signal, siginfo_t* info, void* /*context*/) {
  int none = 0;
  auto not_asked = StopSignal::Leave::kNotAsked;
  const StopSignal::Leave leave = leave_of(*info);
  if (signal == SIGUSR1)
    g_usr1 = true;
  else if (leave != StopSignal::Leave::kNotAsked)
    g_leave.compare_exchange_strong(not_asked, leave);
  else
    g_received.compare_exchange_strong(none, signal);
}

bool covers(StopSignal::Scope scope, int signal) {
  return scope != StopSignal::Scope::kNotices || (signal != SIGINT && signal != SIGTERM);
}

}  // namespace

void expect_no_launcher() {
  const std::lock_guard lock(g_mutex);
  g_has_launcher = false;
}

StopSignal::StopSignal(Scope scope) : scope_(scope) {
  const std::lock_guard lock(g_mutex);
  if (g_alive++ == 0) {
    g_received = 0;
    g_usr1 = false;
    g_leave = Leave::kNotAsked;
  }
  if (scope == Scope::kMember && g_members++ == 0) g_launcher = g_has_launcher ? ::getppid() : 0;
  struct sigaction action {};
  action.sa_sigaction = note;
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < kSignals.size(); ++i)
    if (covers(scope, kSignals[i]) && g_handled[i].users++ == 0) {
      sigaction(kSignals[i], nullptr, &g_handled[i].before);
      if (g_handled[i].before.sa_handler != SIG_IGN) sigaction(kSignals[i], &action, nullptr);
    }
}

StopSignal::~StopSignal() {
  const std::lock_guard lock(g_mutex);
  --g_alive;
  if (scope_ == Scope::kMember) --g_members;
  for (std::size_t i = 0; i < kSignals.size(); ++i)
    if (covers(scope_, kSignals[i]) && --g_handled[i].users == 0)
      sigaction(kSignals[i], &g_handled[i].before, nullptr);
}

int StopSignal::received() { return g_received; }

StopSignal::Leave StopSignal::asked_to_leave() { return g_leave; }

bool StopSignal::has_usr1() { return g_usr1; }

bool StopSignal::take_usr1() { return g_usr1.exchange(false); }

}  // namespace stormo::train
