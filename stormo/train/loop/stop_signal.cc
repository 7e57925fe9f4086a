#include <stormo/train/loop/stop_signal.h>

#include <atomic>
#include <mutex>

namespace stormo::train {
namespace {

// Signal handlers know nothing but the process: this state cannot belong to an object.
std::atomic<int> g_received{0};
std::atomic<bool> g_usr1{false};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

struct Handled {
  int users = 0;
  struct sigaction before {};
};
std::mutex g_mutex;
std::array<Handled, StopSignal::kSignals.size()> g_handled;
int g_alive = 0;

void note(int signal) {
  int none = 0;
  if (signal == SIGUSR1)
    g_usr1 = true;
  else
    g_received.compare_exchange_strong(none, signal);
}

bool covers(StopSignal::Scope scope, int signal) {
  return scope == StopSignal::Scope::kAll || (signal != SIGINT && signal != SIGTERM);
}

}  // namespace

StopSignal::StopSignal(Scope scope) : scope_(scope) {
  const std::lock_guard lock(g_mutex);
  if (g_alive++ == 0) {
    g_received = 0;
    g_usr1 = false;
  }
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
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
  for (std::size_t i = 0; i < kSignals.size(); ++i)
    if (covers(scope_, kSignals[i]) && --g_handled[i].users == 0)
      sigaction(kSignals[i], &g_handled[i].before, nullptr);
}

int StopSignal::received() { return g_received; }

bool StopSignal::has_usr1() { return g_usr1; }

bool StopSignal::take_usr1() { return g_usr1.exchange(false); }

}  // namespace stormo::train
