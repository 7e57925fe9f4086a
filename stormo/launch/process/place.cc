#include <stormo/launch/process/place.h>

#include <unistd.h>

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

}  // namespace stormo::launch
