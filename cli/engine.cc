#include <cli/engine.h>

#include <fmt/format.h>

#include <cli/place.h>
#include <stormo/launch/environment.h>
#ifdef STORMO_HAVE_MPI
#include <stormo/mpi/join.h>
#endif

namespace stormo::cli {
namespace {

constexpr const char* kMpi = "mpi";

bool g_uses_mpi = false;

Result<std::unique_ptr<comm::Communicator>> join_through_mpi() {
#ifdef STORMO_HAVE_MPI
  const auto place = launch::read_environment(launch::process_environment());
  mpi::Options options;
  if (place.ok()) options.interface = place->interface;
  STORMO_ASSIGN_OR_RETURN(auto world, mpi::join_mpi(options));
  // started by something that MPI knows nothing of, every rank would be a world of its own
  if (place.ok() && place->source != "none" && place->size != world->size()) {
    return invalid_argument(fmt::format(
        "--engine mpi: {} started {} ranks, but MPI has {}; start them with mpirun, or with the "
        "srun of a Slurm that knows this MPI",
        place->source, place->size, world->size()));
  }
  return world;
#else
  return invalid_argument(
      "--engine mpi: this program was built without MPI; install libopenmpi-dev or libmpich-dev, "
      "configure again with -DSTORMO_MPI=ON and build");
#endif
}

}  // namespace

void add_engine_flag(CLI::App& command, std::string& engine) {
  command
      .add_option(
          "--engine", engine,
          "What moves bytes between ranks: stormo, or mpi (the MPI that\nmpirun belongs to)")
      ->check(CLI::IsMember({"stormo", kMpi}))
      ->capture_default_str();
}

Result<transport::Rendezvous> find_place(const std::string& engine, const LaunchFlags& flags) {
  if (engine != kMpi) return take_place_in_job(flags);
  if (flags.ranks || !flags.hosts.empty()) {
    return invalid_argument(
        "--engine mpi: mpirun starts the ranks; write 'mpirun -n 4 stormo ...' without -n and -H");
  }
  if (!flags.selection.empty()) {
    return invalid_argument("--engine mpi: MPI chooses its algorithms itself; omit --selection");
  }
  transport::Rendezvous place;
  place.source = kMpi;
  return place;
}

Result<std::unique_ptr<comm::Communicator>> join_world(const std::string& engine,
                                                       const transport::Rendezvous& place) {
  if (engine != kMpi) return comm::join(place);
  g_uses_mpi = true;
  return join_through_mpi();
}

bool uses_mpi() { return g_uses_mpi; }

}  // namespace stormo::cli
