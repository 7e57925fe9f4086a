// A rank that joins, meets the others once, and leaves: see bench/startup.
#include <cstdio>

#include <stormo/comm/communicator.h>
#include <stormo/launch/environment.h>

namespace {

stormo::Status run() {
  STORMO_ASSIGN_OR_RETURN(const auto place,
                          stormo::launch::read_environment(stormo::launch::process_environment()));
  STORMO_ASSIGN_OR_RETURN(const auto world, stormo::comm::join(place));
  STORMO_RETURN_IF_ERROR(world->barrier());
  return world->finalize(stormo::Deadline::never());
}

}  // namespace

int main() {
  const stormo::Status status = run();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
