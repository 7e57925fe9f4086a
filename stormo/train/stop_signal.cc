#include <stormo/train/stop_signal.h>

#include <atomic>
#include <csignal>
#include <mutex>

namespace stormo::train {
namespace {

// Signal handlers know nothing but the process: this state cannot belong to an object.
std::atomic<int> g_received{0};
static_assert(std::atomic<int>::is_always_lock_free);
std::mutex g_mutex;
int g_alive = 0;
struct sigaction g_before_int;
struct sigaction g_before_term;

void note(int signal) {
  int none = 0;
  g_received.compare_exchange_strong(none, signal);
}

}  // namespace

StopSignal::StopSignal() {
  const std::lock_guard lock(g_mutex);
  if (g_alive++ > 0) return;
  g_received = 0;
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &g_before_int);
  sigaction(SIGTERM, &action, &g_before_term);
}

StopSignal::~StopSignal() {
  const std::lock_guard lock(g_mutex);
  if (--g_alive > 0) return;
  sigaction(SIGINT, &g_before_int, nullptr);
  sigaction(SIGTERM, &g_before_term, nullptr);
}

int StopSignal::received() { return g_received; }

}  // namespace stormo::train
