// A rank that sends and receives:
//   messages_worker programs           programs of messages by chance
//   messages_worker programs unread    the same, where no rank can read another's memory
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <vector>

#include "run_as_rank.h"
#include "tests/unit/comm/message_programs.h"

namespace {

using stormo::Deadline;
using stormo::invalid_argument;
using stormo::Status;
using stormo::comm::Communicator;

bool is_unread = false;

/// process_vm_readv asks the kernel as a debugger would; root may debug everybody.
bool forbid_reading() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct own[2]{};
  if (::syscall(SYS_capget, &header, own) != 0) return false;
  own[0].effective &= ~(1U << CAP_SYS_PTRACE);
  return ::syscall(SYS_capset, &header, own) == 0 && ::prctl(PR_SET_DUMPABLE, 0) == 0;
}

/// An error if this rank can read the memory of the next one: then nothing is tested.
Status check_that_nobody_reads(Communicator& world) {
  static std::int64_t value = 4711;
  std::vector<std::int64_t> own = {::getpid(), reinterpret_cast<std::intptr_t>(&value)};
  std::vector<std::int64_t> all(2 * static_cast<std::size_t>(world.size()));
  STORMO_RETURN_IF_ERROR(world.all_gather(own, all));
  const int next = (world.local_rank() + 1) % world.local_size();
  const auto at = 2 * static_cast<std::size_t>(world.rank() - world.local_rank() + next);
  std::int64_t found = 0;
  const iovec here{&found, sizeof found};
  const iovec there{reinterpret_cast<void*>(all[at + 1]), sizeof found};
  if (::process_vm_readv(static_cast<pid_t>(all[at]), &here, 1, &there, 1, 0) > 0) {
    return invalid_argument("the kernel lets ranks read each other's memory");
  }
  return world.barrier();
}

Status run(Communicator& world) {
  if (is_unread) STORMO_RETURN_IF_ERROR(check_that_nobody_reads(world));
  namespace programs = stormo::comm::test;
  std::string wrong = programs::run_programs(world, 0, 60);
  if (wrong.empty()) wrong = programs::run_all_to_all(world, 16 << 20);
  if (!wrong.empty()) return invalid_argument(wrong);
  return world.finalize(Deadline::after(std::chrono::seconds(20)));
}

}  // namespace

int main(int argc, char** /*argv*/) {
  is_unread = argc > 2;
  if (is_unread && !forbid_reading()) return 2;
  return stormo::testing::run_as_rank(run);
}
