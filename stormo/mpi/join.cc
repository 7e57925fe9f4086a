#include <stormo/mpi/join.h>

#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <stormo/mpi/engine.h>

namespace stormo::mpi {
namespace {

/// The ranks of MPI's world, numbered anew if they do not lie host by host. Hosts keep the order of
/// their first ranks.
struct World {
  MPI_Comm ranks = MPI_COMM_NULL;
  comm::Membership place;
};

int find_hosts(World& world) {
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm local = MPI_COMM_NULL;
  int code = MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &local);
  if (code != MPI_SUCCESS) return code;
  MPI_Comm_rank(local, &world.place.local_rank);
  int first = rank;  // of this host, in the world
  code = MPI_Bcast(&first, 1, MPI_INT, 0, local);
  MPI_Comm_free(&local);
  if (code != MPI_SUCCESS) return code;
  std::vector<int> firsts(static_cast<std::size_t>(size));
  code = MPI_Allgather(&first, 1, MPI_INT, firsts.data(), 1, MPI_INT, MPI_COMM_WORLD);
  std::map<int, int> ranks_of_host;
  for (const int f : firsts) ++ranks_of_host[f];
  for (const auto& [host, ranks] : ranks_of_host) {
    if (host == first) world.place.cross_rank = static_cast<int>(world.place.ranks_per_host.size());
    world.place.ranks_per_host.push_back(ranks);
  }
  return code;
}

Result<World> find_world(Library& library) {
  World world;
  STORMO_RETURN_IF_ERROR(library.call("MPI_Comm_split", [&] {
    const int code = find_hosts(world);
    if (code != MPI_SUCCESS) return code;
    const auto& hosts = world.place.ranks_per_host;
    world.place.rank = std::accumulate(hosts.begin(), hosts.begin() + world.place.cross_rank,
                                       world.place.local_rank);
    return MPI_Comm_split(MPI_COMM_WORLD, 0, world.place.rank, &world.ranks);
  }));
  return world;
}

Result<std::string> host_name(Library& library) {
  char name[MPI_MAX_PROCESSOR_NAME] = {};
  int length = 0;
  STORMO_RETURN_IF_ERROR(library.call("MPI_Get_processor_name",
                                      [&] { return MPI_Get_processor_name(name, &length); }));
  return std::string(name);
}

}  // namespace

Result<std::unique_ptr<comm::Communicator>> join_mpi(const Options& options) {
  STORMO_ASSIGN_OR_RETURN(Library * library, Library::open());
  STORMO_ASSIGN_OR_RETURN(transport::Arena * arena, transport::Arena::of_process(0));
  STORMO_ASSIGN_OR_RETURN(std::string host, host_name(*library));
  STORMO_ASSIGN_OR_RETURN(World world, find_world(*library));
  MPI_Comm messages = MPI_COMM_NULL;
  STORMO_RETURN_IF_ERROR(library->call("MPI_Comm_dup", [&] {
    MPI_Comm_set_errhandler(world.ranks, MPI_ERRORS_RETURN);
    return MPI_Comm_dup(world.ranks, &messages);  // with the error handler
  }));
  const transport::WaitPolicy policy =
      transport::wait_policy(world.place.local_size(), transport::usable_cores());
  auto link = std::make_unique<Link>(*library, world.ranks, messages, policy, nullptr);
  STORMO_ASSIGN_OR_RETURN(
      auto meeting_place,
      MeetingPlace::open(*link, {.one_host = world.place.ranks_per_host.size() == 1,
                                 .interface = options.interface,
                                 .host = host}));
  return std::unique_ptr<comm::Communicator>(std::make_unique<Engine>(
      std::move(link), std::move(world.place),
      Engine::Process{std::move(host), arena, options, std::move(meeting_place)}));
}

}  // namespace stormo::mpi
