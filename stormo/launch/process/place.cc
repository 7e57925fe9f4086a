#include <stormo/launch/process/place.h>

#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace stormo::launch {

cpu_set_t to_cpu_set(const CpuList& cpus) {
  cpu_set_t out;
  CPU_ZERO(&out);
  for (const int cpu : cpus)
    if (cpu < CPU_SETSIZE) CPU_SET(static_cast<std::size_t>(cpu), &out);
  return out;
}

const char* take_place(const Place& place) {
  if (place.group == 0) {
    if (::setsid() < 0) return "setsid";
  } else if (::setpgid(0, place.group) != 0) {
    return "setpgid";
  }
  if (place.bind && ::sched_setaffinity(0, sizeof place.cpus, &place.cpus) != 0)
    return "bind to cores";
  // The sources lie above 2, so no order can destroy one.
  const auto put = [](int from, int to) { return from < 0 || ::dup2(from, to) >= 0; };
  const bool all = put(place.input, STDIN_FILENO) && put(place.output, STDOUT_FILENO) &&
                   put(place.error, STDERR_FILENO);
  return all ? nullptr : "dup2";
}

void give_up(int pipe, const char* what) {
  Outcome outcome{.error = errno};
  std::strncpy(outcome.what.data(), what, outcome.what.size() - 1);
  [[maybe_unused]] const ssize_t n = ::write(pipe, &outcome, sizeof outcome);
  ::_exit(127);
}

bool read_outcome(int pipe, Outcome& out) {
  ssize_t n = 0;
  do n = ::read(pipe, &out, sizeof out);
  while (n < 0 && errno == EINTR);
  return n == static_cast<ssize_t>(sizeof out);
}

}  // namespace stormo::launch
